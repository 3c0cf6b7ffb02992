//! A process that can be observed and stopped before it has started.

use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Control, GroupCommand, Readiness};
use crate::shutdown::Command;

/// Represents a process at the admin port, also while it still waits for the broker. Until [`PendingProcess::begin`]
/// it is not ready and holds no tasks.
pub(super) struct PendingProcess<T> {
    process: OnceLock<Arc<T>>,
    commands: mpsc::Sender<Command>,
    awaited: &'static str,
}

impl<T> PendingProcess<T> {
    /// Until `begin`, `awaited` is the reason for not being ready, and commands go to `commands`.
    pub(super) fn new(commands: mpsc::Sender<Command>, awaited: &'static str) -> Arc<Self> {
        Arc::new(Self { process: OnceLock::new(), commands, awaited })
    }

    /// From now on `process` answers. A second call changes nothing.
    pub(super) fn begin(&self, process: Arc<T>) {
        let _ = self.process.set(process);
    }
}

impl<T: Readiness> Readiness for PendingProcess<T> {
    fn ready(&self) -> Result<(), Vec<String>> {
        self.process.get().map_or_else(|| Err(vec![self.awaited.to_owned()]), |process| process.ready())
    }
}

impl<T: Control> Control for PendingProcess<T> {
    fn command(&self, command: Command) {
        match self.process.get() {
            Some(process) => process.command(command),
            // A full channel drops the command: it already holds enough of them.
            None => drop(self.commands.try_send(command)),
        }
    }

    fn pool(&self) -> Value {
        self.process.get().map_or_else(|| json!({}), |process| process.pool())
    }

    fn stop_task(&self, id: &str) -> bool {
        self.process.get().is_some_and(|process| process.stop_task(id))
    }

    fn group(&self, group: &str, command: GroupCommand) -> bool {
        self.process.get().is_some_and(|process| process.group(group, command))
    }
}
