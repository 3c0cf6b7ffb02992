//! Children that never outlive the console, however it ends.
//!
//! `garenne leash PID PROGRAM …` asks the kernel for SIGKILL at its parent's death and becomes the
//! program. A child started directly cannot be given that from outside without unsafe code.

use std::{convert::Infallible, ffi::OsString, os::unix::process::CommandExt, process::Command};

use clap::Args;
use garenne_common::exit::{Exit, Failure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// `garenne leash`, for the console itself.
#[derive(Clone, Debug, Args)]
pub struct LeashArgs {
    /// Who holds the leash
    parent: i32,
    /// What to become
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the program; the process id stays.
///
/// # Errors
/// The program cannot be started, or the parent is gone already.
pub(crate) fn run(args: &LeashArgs) -> Result<Infallible, Failure> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::new(Exit::Failed, format_args!("no leash on this system: {error}")))?;
    // A parent that died before the line above sends no signal any more.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(args.parent) {
        return Err(Failure::new(Exit::Failed, "whoever held the leash is gone"));
    }
    let error = Command::new(&args.command[0]).args(&args.command[1..]).exec();
    Err(Failure::new(Exit::Failed, format_args!("{} cannot be started: {error}", args.command[0].display())))
}
