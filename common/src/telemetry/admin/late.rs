//! A process that can be watched before it has begun.

use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Control, GroupCommand, Readiness};
use crate::shutdown::Command;

/// Stands for the process at the admin port from its first moment on, so that it is seen to live
/// while it waits for the broker. Not ready, and in charge of nothing, until it has begun.
pub(super) struct Late<T> {
    begun: OnceLock<Arc<T>>,
    commands: mpsc::Sender<Command>,
    awaited: &'static str,
}

impl<T> Late<T> {
    /// `awaited` is what readiness misses until it has begun; `commands` obeys from the beginning.
    pub(super) fn new(commands: mpsc::Sender<Command>, awaited: &'static str) -> Arc<Self> {
        Arc::new(Self { begun: OnceLock::new(), commands, awaited })
    }

    /// It has begun; what is asked from now on, `process` answers. Only the first one counts.
    pub(super) fn begin(&self, process: Arc<T>) {
        let _ = self.begun.set(process);
    }
}

impl<T: Readiness> Readiness for Late<T> {
    fn ready(&self) -> Result<(), Vec<String>> {
        self.begun.get().map_or_else(|| Err(vec![self.awaited.to_owned()]), |process| process.ready())
    }
}

impl<T: Control> Control for Late<T> {
    fn command(&self, command: Command) {
        match self.begun.get() {
            Some(process) => process.command(command),
            // A full channel holds commands enough.
            None => drop(self.commands.try_send(command)),
        }
    }

    fn pool(&self) -> Value {
        self.begun.get().map_or_else(|| json!({}), |process| process.pool())
    }

    fn stop_task(&self, id: &str) -> bool {
        self.begun.get().is_some_and(|process| process.stop_task(id))
    }

    fn group(&self, group: &str, command: GroupCommand) -> bool {
        self.begun.get().is_some_and(|process| process.group(group, command))
    }
}
