//! Child processes that never outlive their parent, however it ends.
//!
//! A child is started through the console's hidden command [`COMMAND`]. That process asks the kernel for SIGKILL
//! at its parent's death and then executes the program; the process id stays the same. The parent cannot set the
//! signal for its child without unsafe code.
//!
//! The signal follows the *thread* that started the child: start children from a thread that lives as long as
//! they should.

use std::{ffi::OsString, io, os::unix::process::CommandExt, path::PathBuf, process::Command};

use garenne_common::exit::{Exit, HasExit};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use thiserror::Error;

/// The console's command that calls [`exec`]: `garenne die-with-parent PID PROGRAM …`.
pub const COMMAND: &str = "die-with-parent";

/// Why a program was not executed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DieWithParentError {
    /// The kernel has no parent-death signal.
    #[error("cannot request a signal at the parent's death: {0}")]
    Unsupported(io::Error),
    /// The parent ended before the signal was requested.
    #[error("parent process {0} has ended")]
    ParentEnded(i32),
    /// The command is empty.
    #[error("no program to execute")]
    NoProgram,
    /// The program cannot be executed.
    #[error("cannot execute {}: {source}", program.display())]
    Exec {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl HasExit for DieWithParentError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// Requests SIGKILL at the death of the process `parent` and executes `command`, a program and its arguments. Returns
/// only if that fails.
pub fn exec(parent: i32, command: &[OsString]) -> DieWithParentError {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return DieWithParentError::Unsupported(error.into());
    }
    // A parent that ended before the request sends no signal.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(parent) {
        return DieWithParentError::ParentEnded(parent);
    }
    let Some((program, arguments)) = command.split_first() else { return DieWithParentError::NoProgram };
    let source = Command::new(program).args(arguments).exec();
    DieWithParentError::Exec { program: program.into(), source }
}
