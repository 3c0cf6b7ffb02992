//! `garenne-producer spool`: looks at a spool, checks it, exports its records and publishes them.

mod drain;
mod export;
mod requeue;
mod show;
mod verify;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use garenne_common::exit::{Exit, Failure};
use garenne_publish::BrokerSettings;
use garenne_spool::Inspection;

/// Flags of `spool`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SpoolArgs {
    #[command(subcommand)]
    command: SpoolCommand,
}

/// The commands. All but `drain` and `requeue` change nothing and work while a gateway uses the spool.
#[derive(Debug, Clone, Subcommand)]
enum SpoolCommand {
    /// Print what the spool contains
    Show {
        /// Directory of the spool
        directory: PathBuf,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Check every byte; exit code 1 if a segment is corrupt
    Verify {
        /// Directory of the spool
        directory: PathBuf,
    },
    /// Print the records that wait as JSON lines
    Export {
        /// Directory of the spool
        directory: PathBuf,
        /// Print the readable records of segments that were set aside instead
        #[arg(long)]
        set_aside: bool,
    },
    /// Publish the records that wait and remove them; no other process may use the spool
    Drain(drain::DrainArgs),
    /// Put the records of intact segments that were set aside back into the spool; no other process may use it
    Requeue {
        /// Directory of the spool
        directory: PathBuf,
    },
}

pub(crate) async fn run(settings: BrokerSettings, args: SpoolArgs) -> Result<Exit, Failure> {
    match args.command {
        SpoolCommand::Show { directory, json } => show::run(&directory, &inspect(&directory)?, json),
        SpoolCommand::Verify { directory } => verify::run(&inspect(&directory)?),
        SpoolCommand::Export { directory, set_aside } => export::run(&inspect(&directory)?, set_aside),
        SpoolCommand::Drain(args) => drain::run(settings, args).await,
        SpoolCommand::Requeue { directory } => requeue::run(&directory).await,
    }
}

fn inspect(directory: &Path) -> Result<Inspection, Failure> {
    Inspection::open(directory)
        .map_err(|error| Failure::new(Exit::Failed, format_args!("spool {}: {error}", directory.display())))
}

#[cfg(test)]
mod tests;
