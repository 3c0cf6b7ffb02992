//! The account of a run: which tasks were acknowledged, and what became of each.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::lines::{Execution, Expected};

/// Every acknowledged task with the evidence of what became of it, by task id.
#[derive(Debug)]
pub struct Account {
    expected: Vec<Expected>,
    /// Acknowledged tasks that are in no execution log yet.
    open: HashSet<String>,
    /// The workers that executed a task, one entry for each execution.
    executions: HashMap<String, Vec<Arc<str>>>,
    /// The number of effects. Without it, an executed task counts as one effect.
    pub effects: Option<HashMap<String, u64>>,
    /// The reason of each task in the dead-letter queue.
    pub dead: HashMap<String, String>,
    /// When a task was acknowledged last, or an acknowledged task executed for the first time.
    progress_at: Instant,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            expected: Vec::new(),
            open: HashSet::new(),
            executions: HashMap::new(),
            effects: None,
            dead: HashMap::new(),
            progress_at: Instant::now(),
        }
    }
}

impl Account {
    /// Adds tasks that were acknowledged to their sender.
    pub(crate) fn acknowledged(&mut self, tasks: impl IntoIterator<Item = Expected>) {
        for task in tasks {
            if !self.executions.contains_key(&task.id) {
                self.open.insert(task.id.clone());
            }
            self.expected.push(task);
            self.progress_at = Instant::now();
        }
    }

    /// Adds lines of the execution logs.
    pub(crate) fn executed(&mut self, lines: Vec<Execution>) {
        for Execution { task_id, worker, .. } in lines {
            if self.open.remove(&task_id) {
                self.progress_at = Instant::now();
            }
            self.executions.entry(task_id).or_default().push(worker);
        }
    }

    /// The acknowledged tasks, in order. A task that was acknowledged twice is in it twice.
    #[must_use]
    pub fn expected(&self) -> &[Expected] {
        &self.expected
    }

    /// The number of acknowledged tasks that were not executed yet.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// The number of distinct tasks that were executed.
    #[must_use]
    pub fn executed_tasks(&self) -> usize {
        self.executions.len()
    }

    /// How long no task was acknowledged, and no acknowledged task executed for the first time.
    #[must_use]
    pub fn stalled_for(&self) -> Duration {
        self.progress_at.elapsed()
    }

    /// Starts [`stalled_for`](Self::stalled_for) anew: while the broker is away, no progress is expected.
    pub fn excuse_stall(&mut self) {
        self.progress_at = Instant::now();
    }

    /// The workers that executed a task, one entry for each execution.
    pub(super) fn executions_of(&self, id: &str) -> &[Arc<str>] {
        self.executions.get(id).map_or(&[], Vec::as_slice)
    }

    pub(super) fn effects_of(&self, id: &str) -> u64 {
        match &self.effects {
            Some(effects) => effects.get(id).copied().unwrap_or(0),
            None => u64::from(self.executions.contains_key(id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Audit;

    fn task(id: &str) -> Expected {
        Expected { id: id.to_owned(), reading: None }
    }

    fn run(id: &str) -> Execution {
        Execution { task_id: id.to_owned(), worker: "w".into(), started_at: String::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_is_open_from_its_acknowledgement_to_its_first_execution() {
        let mut account = Account::default();
        // An execution log can be read before the sender's receipts.
        account.executed(vec![run("early")]);
        account.acknowledged([task("early"), task("late")]);
        assert_eq!((account.expected().len(), account.open(), account.executed_tasks()), (2, 1, 1));
        account.executed(vec![run("late"), run("late")]);
        assert_eq!((account.open(), account.executed_tasks()), (0, 2));
        assert_eq!(Audit::of(&account).totals.rerun, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_without_changes_is_stalled() {
        let mut account = Account::default();
        account.acknowledged([task("a")]);
        assert_eq!(account.stalled_for(), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(account.stalled_for(), Duration::from_secs(3));
        account.excuse_stall();
        assert_eq!(account.stalled_for(), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(3)).await;
        account.executed(vec![run("a")]);
        assert_eq!(account.stalled_for(), Duration::ZERO);
    }
}
