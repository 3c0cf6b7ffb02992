//! The admin port: HTTP endpoints to observe and control a running process.
//!
//! Queries need no token. Commands need the admin token and are refused if none is configured. The port is bound
//! before work starts and closed last, so that a shutdown can be observed until its end.

#[cfg(feature = "admin")]
mod bind;
#[cfg(feature = "admin")]
mod connections;
#[cfg(not(feature = "admin"))]
mod disabled;
#[cfg(feature = "admin")]
mod host;
#[cfg(feature = "admin")]
mod places;
#[cfg(feature = "admin")]
mod port;
#[cfg(feature = "admin")]
mod problem;
#[cfg(feature = "admin")]
mod routes;
#[cfg(feature = "admin")]
mod serve;
#[cfg(feature = "admin")]
mod tls;

use serde_json::{Value, json};

#[cfg(not(feature = "admin"))]
pub use self::disabled::{AdminConfig, AdminPort, bind};
#[cfg(feature = "admin")]
pub use self::{
    bind::{AdminConfig, bind},
    connections::network,
    host::own_hosts_only,
    places::Visitor,
    port::AdminPort,
    problem::problems_only,
    serve::serve_router,
    tls::ServerTls,
};

/// A process, as its admin port shows it. Calls must not block.
pub trait Process: Send + Sync {
    /// # Errors
    /// The reasons why it is not ready to work, each as one line for an operator.
    fn ready(&self) -> Result<(), Vec<String>>;

    /// Warnings for an operator although the process is ready, each as one line.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The state of its local pools, as `/pool` returns it.
    fn pool(&self) -> Value {
        json!({ "lanes": {} })
    }

    /// The tasks that commands can stop; `None` if it runs none.
    fn tasks(&self) -> Option<&dyn Tasks> {
        None
    }
}

/// The tasks of a worker. Calls must not block.
pub trait Tasks {
    /// Stops a task; false if this process does not hold it.
    fn stop(&self, id: &str) -> bool;

    /// Applies a command to a group of tasks; false if this process holds no task of it.
    fn group(&self, group: &str, command: GroupCommand) -> bool;
}

/// An operator's command for a group of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum GroupCommand {
    /// Its tasks no longer start.
    Pause,
    /// Its tasks start again.
    Resume,
    /// Its running and waiting tasks are stopped.
    Stop,
}

#[cfg(all(test, feature = "admin"))]
mod tests;
