//! What the witnesses say, by task id.

use std::{collections::HashMap, sync::Arc};

/// One line of an execution log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// Who ran it.
    pub worker: Arc<str>,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// When it began, RFC 3339.
    pub started_at: String,
}

/// What is known of every task.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// What the execution logs hold.
    pub executions: HashMap<String, Vec<Execution>>,
    /// Effects found in the store; without a store, a task that is in a log took effect once.
    pub effects: Option<HashMap<String, u64>>,
    /// Why it is dead, for those in the dead-letter queue.
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
