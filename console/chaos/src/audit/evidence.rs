//! The evidence of what became of each task, by task id.

use std::{collections::HashMap, sync::Arc};

/// One line of an execution log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The worker that executed it.
    pub worker: Arc<str>,
    /// The attempt, from 1; 0 if the worker does not report it.
    pub attempt: u32,
    /// When it started, RFC 3339; empty if the worker does not report it.
    pub started_at: String,
}

/// Executions, effects and dead letters of all tasks.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Executions, from the execution logs.
    pub executions: HashMap<String, Vec<Execution>>,
    /// The number of effects. Without it, an executed task counts as one effect.
    pub effects: Option<HashMap<String, u64>>,
    /// The reason of each task in the dead-letter queue.
    pub dead: HashMap<String, String>,
}

impl Evidence {
    /// Adds lines of execution logs.
    pub fn executed(&mut self, lines: impl IntoIterator<Item = (String, Execution)>) {
        for (id, execution) in lines {
            self.executions.entry(id).or_default().push(execution);
        }
    }

    pub(super) fn executions_of(&self, id: &str) -> &[Execution] {
        self.executions.get(id).map_or(&[], Vec::as_slice)
    }

    pub(super) fn effects_of(&self, id: &str) -> u64 {
        match &self.effects {
            Some(effects) => effects.get(id).copied().unwrap_or(0),
            None => u64::from(self.executions.contains_key(id)),
        }
    }
}
