//! Errors of a run.

use std::io;

use garenne_amqp::BrokerError;
use garenne_common::exit::{Exit, HasExit};
use thiserror::Error;
use tokio::task::JoinError;

use crate::process::ProcessError;

/// Why a run cannot continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChaosError {
    /// A process failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// An execution log cannot be read.
    #[error("cannot read an execution log: {0}")]
    Log(#[from] io::Error),
    /// The command that restarts the broker failed.
    #[error("broker restart command {command:?} failed: {detail}")]
    RestartCommand {
        /// The command.
        command: String,
        /// Its exit status, or why it was not run.
        detail: String,
    },
    /// The broker did not accept connections after a restart.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A task of the engine panicked.
    #[error("fault task failed: {0}")]
    Task(#[from] JoinError),
}

impl HasExit for ChaosError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}
