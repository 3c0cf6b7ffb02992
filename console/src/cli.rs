//! The command line.

use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use garenne_common::{
    config::{CommonArgs, flag},
    topology::BrokerVersion,
};

use crate::{dead::cli::DeadVerb, demo::DemoArgs, leash::LeashArgs};

/// Looks at a Garenne fleet and steers it.
#[derive(Debug, Parser)]
#[command(
    name = "garenne",
    version,
    about,
    after_help = "Example:\n  garenne status --amqp-url amqp://guest:guest@127.0.0.1:5672/%2f",
    subcommand_required = false,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What every program takes.
    #[command(flatten)]
    pub common: CommonArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// What waits, runs, retries and died, lane by lane
    #[command(after_help = "Examples:\n  garenne status\n  garenne status --json | jq .lanes")]
    Status(StatusArgs),
    /// Exchanges and queues: create them, compare them with the broker's, print them
    Topology {
        /// What to do with it.
        #[command(subcommand)]
        verb: TopologyVerb,
    },
    /// Dead letters: look at them, send them back to work, drop them
    Dead {
        /// What to do with them.
        #[command(subcommand)]
        verb: DeadVerb,
    },
    /// A gateway, workers and a recording on this machine, with trouble on the way and an account at the end
    #[command(
        after_help = "Examples:\n  garenne demo --for 30s\n  garenne demo --recording readings.csv --speed 60x --workers 5"
    )]
    Demo(DemoArgs),
    #[command(hide = true)]
    #[expect(missing_docs, reason = "clap would take a comment for the command's description")]
    Leash(LeashArgs),
}

/// `garenne status`.
#[derive(Clone, Debug, Default, Args)]
pub struct StatusArgs {
    /// One JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `garenne topology …`.
#[derive(Clone, Debug, Subcommand)]
pub enum TopologyVerb {
    /// Create what is missing (needs the configure right)
    #[command(after_help = "Example:\n  garenne topology apply --amqp-url amqp://admin:…@broker:5672/%2f")]
    Apply,
    /// Compare the broker's exchanges, queues and bindings with what the settings want; 1 if they differ
    #[command(
        after_help = "Example:\n  garenne topology check --management-url http://guest:guest@127.0.0.1:15672"
    )]
    Check,
    /// Print it for a boot import (load_definitions)
    #[command(
        after_help = "Example:\n  garenne topology export --format definitions --broker-version 4.0 > definitions.json"
    )]
    Export {
        /// What it is printed as
        #[arg(long, value_enum, default_value_t = ExportFormat::Definitions)]
        format: ExportFormat,
        /// The broker's version, such as 3.13 or 4.0; asked of the broker when absent
        #[arg(long, value_name = "VERSION")]
        broker_version: Option<BrokerVersion>,
    },
}

/// What the topology is printed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// RabbitMQ's definitions file, JSON.
    Definitions,
}

impl Cli {
    /// Settings that this program's own flags give.
    pub fn own_settings(&self) -> toml::Table {
        let mut own = toml::Table::new();
        if let Command::Demo(args) = &self.command {
            flag(&mut own, "postgres_url", args.postgres_url.as_ref());
        }
        own
    }
}

/// Reads a span such as `90s`, `1h` or `2d`.
///
/// # Errors
/// One line saying how one looks.
pub fn span(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; expected a span such as 90s, 1h or 2d"))
}
