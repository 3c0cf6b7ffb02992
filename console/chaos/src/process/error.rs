//! Errors of child processes.

use std::{io, path::PathBuf, time::Duration};

use garenne_common::exit::{Exit, HasExit};
use thiserror::Error;

/// Why a child process could not be started or failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The program is missing.
    #[error("{program} is not in {}: build it with `cargo build --workspace --bins`", folder.display())]
    NoProgram {
        /// The program.
        program: String,
        /// The folder that was searched.
        folder: PathBuf,
    },
    /// The system refused to start the process.
    #[error("cannot start {name}: {source}")]
    Start {
        /// The name of the process.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused a signal.
    #[error("cannot signal {name}: {source}")]
    Signal {
        /// The name of the process.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The process ended although nothing stopped it.
    #[error("{name} ended ({status}): {log}")]
    Ended {
        /// The name of the process.
        name: String,
        /// The exit status.
        status: String,
        /// The last line of its log, and the log's path.
        log: String,
    },
    /// The process runs and did not become ready in time.
    #[error("{name} is not ready after {} s: {log}", limit.as_secs())]
    NotReady {
        /// The name of the process.
        name: String,
        /// How long it had.
        limit: Duration,
        /// The last line of its log, and the log's path.
        log: String,
    },
}

impl HasExit for ProcessError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}
