//! Child processes that never outlive their parent, however it ends.
//!
//! A child is started through the hidden command [`COMMAND`] of `garenne-drill`. That process asks the kernel for SIGKILL
//! at its parent's death and then executes the program; the process id stays the same. The parent cannot set the
//! signal for its child without unsafe code.
//!
//! The signal follows the *thread* that started the child: start children from a thread that lives as long as
//! they should.

use std::{
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
};

use anyhow::anyhow;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// The command that calls [`exec`]: `garenne-drill die-with-parent PID PROGRAM …`.
pub const COMMAND: &str = "die-with-parent";

/// A command that starts `program` through `drill`, the program `garenne-drill`. Its process dies with the thread that
/// starts it.
pub fn command(drill: &Path, program: &OsStr) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(drill);
    command.arg(COMMAND).arg(std::process::id().to_string()).arg(program);
    command
}

/// Requests SIGKILL at the death of the process `parent` and executes `command`, a program and its arguments. Returns
/// only if that fails.
pub fn exec(parent: i32, command: &[OsString]) -> anyhow::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return anyhow!("cannot request a signal at the parent's death: {error}");
    }
    // A parent that ended before the request sends no signal.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(parent) {
        return anyhow!("parent process {parent} has ended");
    }
    let Some((program, arguments)) = command.split_first() else { return anyhow!("no program to execute") };
    let error = Command::new(program).args(arguments).exec();
    anyhow!("cannot execute {}: {error}", Path::new(program).display())
}
