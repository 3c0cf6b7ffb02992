//! The admin port: how a running process is watched and steered over HTTP.
//!
//! Questions are free to ask; commands need the admin token, and are refused where none is set. The
//! port is bound before work starts and closed last, so that a stop can be watched to its end.

mod bind;
mod late;
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

use self::late::Late;
use super::Metrics;
use crate::shutdown::{Command, Mode};

/// Whether a process can do its work now.
pub trait Readiness: Send + Sync {
    /// # Errors
    /// What it waits for, each in words for an operator.
    fn ready(&self) -> Result<(), Vec<String>>;
}

/// What an operator can do with a group of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupCommand {
    /// Its tasks do not start.
    Pause,
    /// Its tasks start again.
    Resume,
    /// Its tasks are stopped, running and waiting ones.
    Stop,
}

/// The process as the admin port sees it. Calls must not block.
pub trait Control: Send + Sync {
    /// Passes a command on to whoever runs the work.
    fn command(&self, command: Command);

    /// The local pools, for people and for the operator's tool.
    fn pool(&self) -> Value;

    /// Stops a task; false if this process does not hold it.
    fn stop_task(&self, id: &str) -> bool;

    /// Commands a group of tasks; false if this process holds none of it.
    fn group(&self, group: &str, command: GroupCommand) -> bool;
}

/// What the admin port shows and steers.
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
