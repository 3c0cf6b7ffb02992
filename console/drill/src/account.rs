//! The account of a run: which tasks were acknowledged to their sender, and what became of each. A task must take
//! effect once.
//!
//! The evidence has three independent sources: the sender's receipts list the tasks, the workers' execution logs count
//! the executions, and a file or database counts the effects. Execution logs are append-only: a worker cannot remove
//! what it wrote.

mod effects;
mod lines;
mod store;
mod verdict;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

pub(crate) use effects::{EFFECTS_FILE, EffectSource, Effects};
pub(crate) use lines::{Execution, Expected, Tail};
pub(crate) use store::Store;
pub(crate) use verdict::{Totals, Verdicts};

/// Every acknowledged task with the evidence of what became of it, by task id.
#[derive(Debug, Default)]
pub(crate) struct Account {
    expected: Vec<Expected>,
    /// Acknowledged tasks that are in no execution log yet.
    open: HashSet<String>,
    /// The workers that executed a task, one entry for each execution.
    executions: HashMap<String, Vec<Arc<str>>>,
    /// The number of effects; nothing if they are not counted.
    effects: Option<HashMap<String, u64>>,
    /// The reason of each task in the dead-letter queue.
    dead: HashMap<String, String>,
    /// When a task was acknowledged last, executed for the first time or known to be resolved; nothing before the run.
    progress_at: Option<Instant>,
}

impl Account {
    /// Adds tasks that were acknowledged to their sender.
    pub(crate) fn acknowledged(&mut self, tasks: impl IntoIterator<Item = Expected>) {
        for task in tasks {
            if !self.executions.contains_key(&task.id) {
                self.open.insert(task.id.clone());
            }
            self.expected.push(task);
            self.progress_at = Some(Instant::now());
        }
    }

    /// Adds lines of the execution logs.
    pub(crate) fn executed(&mut self, lines: Vec<Execution>) {
        for Execution { task_id, worker, .. } in lines {
            if self.open.remove(&task_id) {
                self.progress_at = Some(Instant::now());
            }
            self.executions.entry(task_id).or_default().push(worker);
        }
    }

    /// The acknowledged tasks, in order. A task that was acknowledged twice is in it twice.
    pub(crate) fn expected(&self) -> &[Expected] {
        &self.expected
    }

    /// The number of acknowledged tasks that were not executed yet.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Replaces the number of effects of each task. [`None`] if they are not counted.
    pub(crate) fn set_effects(&mut self, effects: Option<HashMap<String, u64>>) {
        self.update(|account| account.effects = effects);
    }

    /// Replaces the reasons of the tasks in the dead-letter queue.
    pub(crate) fn set_dead(&mut self, dead: HashMap<String, String>) {
        self.update(|account| account.dead = dead);
    }

    fn update(&mut self, change: impl FnOnce(&mut Self)) {
        let before = self.unresolved();
        change(self);
        if self.unresolved() < before {
            self.progress_at = Some(Instant::now());
        }
    }

    /// The number of acknowledged tasks that took no effect and are no dead letters. An executed task can be among
    /// them: its result was not stored, and the broker delivers it again.
    pub(crate) fn unresolved(&self) -> usize {
        // Where effects are not counted, nothing but the execution says that the task is done.
        let has_effect = |id: &String| {
            self.effects_of(id).map_or_else(|| self.executions.contains_key(id), |count| count > 0)
        };
        let is_resolved = |id: &String| has_effect(id) || self.dead.contains_key(id);
        self.expected.iter().filter(|task| !is_resolved(&task.id)).count()
    }

    /// The number of distinct tasks that were executed.
    pub(crate) fn executed_tasks(&self) -> usize {
        self.executions.len()
    }

    /// How long no task was acknowledged, executed for the first time or known to be resolved.
    pub(crate) fn stalled_for(&self) -> Duration {
        self.progress_at.map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Starts [`stalled_for`](Self::stalled_for) anew: at the start, and while the broker is away, when no progress is
    /// expected.
    pub(crate) fn excuse_stall(&mut self) {
        self.progress_at = Some(Instant::now());
    }

    /// Why a task is in the dead-letter queue.
    pub(crate) fn dead_reason_of(&self, id: &str) -> Option<&str> {
        self.dead.get(id).map(String::as_str)
    }

    /// The workers that executed a task, one entry for each execution.
    pub(crate) fn executions_of(&self, id: &str) -> &[Arc<str>] {
        self.executions.get(id).map_or(&[], Vec::as_slice)
    }

    /// Whether effects were counted.
    pub(crate) fn has_effects(&self) -> bool {
        self.effects.is_some()
    }

    /// How often a task took effect; nothing if effects were not counted.
    pub(crate) fn effects_of(&self, id: &str) -> Option<u64> {
        let effects = self.effects.as_ref()?;
        Some(effects.get(id).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(Verdicts::of(&account).totals.rerun, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_executed_task_is_unresolved_until_it_takes_effect_or_is_a_dead_letter() {
        let mut account = Account::default();
        account.acknowledged([task("stored"), task("waits"), task("dead")]);
        account.executed(vec![run("stored"), run("waits")]);
        assert_eq!(account.unresolved(), 1, "without counted effects, an executed task is done");
        let effects = |ids: &[&str]| Some(ids.iter().map(|&id| (id.to_owned(), 1)).collect());
        account.set_effects(effects(&["stored"]));
        assert_eq!((account.open(), account.unresolved()), (1, 2));
        tokio::time::advance(Duration::from_secs(3)).await;
        account.set_dead(HashMap::from([("dead".to_owned(), "conflict".to_owned())]));
        assert_eq!((account.unresolved(), account.stalled_for()), (1, Duration::ZERO));
        tokio::time::advance(Duration::from_secs(3)).await;
        account.set_effects(effects(&["stored"]));
        assert_eq!(account.stalled_for(), Duration::from_secs(3), "nothing was resolved");
        account.set_effects(effects(&["stored", "waits"]));
        assert_eq!((account.unresolved(), account.stalled_for()), (0, Duration::ZERO));
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
