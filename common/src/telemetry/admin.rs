//! The admin port: HTTP endpoints to observe and control a running process.
//!
//! Queries need no token. Commands need the admin token and are refused if none is configured. The port is bound
//! before work starts and closed last, so that a shutdown can be observed until its end.

mod bind;
mod pending_process;
mod port;
mod problem;
mod routes;
mod serve;

use std::sync::Arc;

use serde_json::Value;

pub use bind::{AdminConfig, bind};
pub use port::AdminPort;
pub use routes::router;
pub use serve::{serve, serve_router};

use self::pending_process::PendingProcess;
use super::Metrics;
use crate::shutdown::{Command, Mode};

/// Whether a process is ready to work.
pub trait Readiness: Send + Sync {
    /// # Errors
    /// The reasons why it is not ready, each as one line for an operator.
    fn ready(&self) -> Result<(), Vec<String>>;
}

/// An operator's command for a group of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupCommand {
    /// Its tasks no longer start.
    Pause,
    /// Its tasks start again.
    Resume,
    /// Its running and waiting tasks are stopped.
    Stop,
}

/// The process that the admin port controls. Calls must not block.
pub trait Control: Send + Sync {
    /// Passes a command to the code that runs the work.
    fn command(&self, command: Command);

    /// The state of the local pools, as `/pool` returns it.
    fn pool(&self) -> Value;

    /// Stops a task; false if this process does not hold it.
    fn stop_task(&self, id: &str) -> bool;

    /// Applies a command to a group of tasks; false if this process holds no task of it.
    fn group(&self, group: &str, command: GroupCommand) -> bool;
}

/// What the admin port serves.
#[derive(Clone)]
pub struct AdminParts {
    /// Behind `/metrics`.
    pub metrics: Metrics,
    /// Behind `/readyz`.
    pub readiness: Arc<dyn Readiness>,
    /// Behind `/pool` and the commands.
    pub control: Arc<dyn Control>,
    /// The mode of a `POST /shutdown` that names none.
    pub mode: Mode,
}

#[cfg(test)]
mod tests;
