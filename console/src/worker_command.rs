//! The commands that workers take from their control queues.

use garenne_common::shutdown::Mode;
use serde::Serialize;

/// The routing key of commands to every worker.
pub const ALL_WORKERS: &str = "workers";

/// The routing key of commands to one worker.
pub fn worker_key(worker: &str) -> String {
    format!("worker.{worker}")
}

/// A command to a worker, as JSON on the wire.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum WorkerCommand {
    /// Shut down; without a mode, in the worker's default mode.
    Shutdown {
        /// The shutdown mode.
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: Option<Mode>,
    },
    /// Take no more tasks, keep running.
    Quiet,
    /// Take tasks again.
    Resume,
    /// Send a heartbeat now.
    Beat,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_json_that_workers_read() {
        let json = |command| serde_json::to_string(&command).unwrap();
        assert_eq!(
            json(WorkerCommand::Shutdown { mode: Some(Mode::Soft) }),
            r#"{"command":"shutdown","mode":"soft"}"#
        );
        assert_eq!(json(WorkerCommand::Shutdown { mode: None }), r#"{"command":"shutdown"}"#);
        assert_eq!(json(WorkerCommand::Quiet), r#"{"command":"quiet"}"#);
        assert_eq!(json(WorkerCommand::Beat), r#"{"command":"beat"}"#);
    }
}
