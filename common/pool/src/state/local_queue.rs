//! The tasks that one worker holds: the running one and a batch of queued ones.

use std::{
    collections::{VecDeque, vec_deque::Drain},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    admitted_task::{AdmittedTask, extract},
    stop_limit::StopLimit,
};
use crate::{cause::Cause, completion::Completion, saturating_instant, spec::Run, task::Task};

pub(crate) struct LocalQueue<T: Task, C: Completion<T::Output>> {
    /// While `running` is set, the first task is the running one. It stays in place, because moving it would
    /// cost more than running it.
    tasks: VecDeque<AdmittedTask<T, C>>,
    running: Option<RunState>,
    /// Tasks that ended on this worker and are not yet counted by the pool. Incremented in the step that removes
    /// the task, before its completion is called: code that observes an end also observes the free place in the
    /// queue.
    pub(crate) uncounted: u64,
    /// The task that ran at the monitor's last tick.
    pub(crate) seen: Option<u64>,
}

/// What is known only of a running task.
#[derive(Default)]
pub(crate) struct RunState {
    /// Absent for a short task of an unobserved pool: reading the clock is a fifth of its cost.
    pub(crate) since: Option<Instant>,
    pub(crate) limit: Option<StopLimit>,
    /// Not a field of `AdmittedTask`, which is moved too often to be larger.
    pub(crate) label: Option<&'static str>,
}

/// The running task, still in its queue.
pub(crate) struct CurrentTask<'a, T: Task, C: Completion<T::Output>> {
    pub(crate) task: &'a AdmittedTask<T, C>,
    pub(crate) state: &'a mut RunState,
}

/// A task that ran, removed from its queue. The code that removed it must notify its owner.
pub(crate) struct EndedTask<T: Task, C: Completion<T::Output>> {
    pub(crate) task: AdmittedTask<T, C>,
    pub(crate) state: RunState,
}

impl RunState {
    /// Why the task was cancelled. A short task never is, even if a hard shutdown limits its time.
    pub(crate) fn cancelled(&self, run: Run) -> Option<Cause> {
        match run {
            Run::Short => None,
            Run::Long { .. } => self.limit.map(|limit| limit.cause),
        }
    }
}

impl<T: Task, C: Completion<T::Output>> CurrentTask<'_, T, C> {
    /// Limits the time that is left to the task. A later limit may shorten that time, never lengthen it.
    /// Returns true if the task must now be cancelled for the first time.
    pub(crate) fn limit(&mut self, cause: Cause, now: Instant, grace: Duration) -> bool {
        // A short task is given up only by a shutdown.
        if matches!(self.task.run, Run::Short) && cause != Cause::Shutdown {
            return false;
        }
        let give_up_at = saturating_instant::add(now, grace);
        match &mut self.state.limit {
            Some(limit) => {
                limit.give_up_at = limit.give_up_at.min(give_up_at);
                false
            }
            None => {
                self.state.limit = Some(StopLimit { cause, give_up_at, drop_requested: false });
                matches!(self.task.run, Run::Long { .. })
            }
        }
    }
}

impl<T: Task, C: Completion<T::Output>> LocalQueue<T, C> {
    pub(crate) fn new() -> Self {
        Self { tasks: VecDeque::new(), running: None, uncounted: 0, seen: None }
    }

    pub(crate) fn current(&mut self) -> Option<CurrentTask<'_, T, C>> {
        let task = self.tasks.front()?;
        self.running.as_mut().map(|state| CurrentTask { task, state })
    }

    /// Removes the running task.
    pub(crate) fn finish(&mut self) -> Option<EndedTask<T, C>> {
        let state = self.running.take()?;
        self.tasks.pop_front().map(|task| EndedTask { task, state })
    }

    /// Marks the next task as running. No task may be running.
    pub(crate) fn start(&mut self) -> Option<(&mut AdmittedTask<T, C>, &mut RunState)> {
        let task = self.tasks.front_mut()?;
        Some((task, self.running.insert(RunState::default())))
    }

    pub(crate) fn push_first(&mut self, task: AdmittedTask<T, C>) {
        self.tasks.push_front(task);
    }

    pub(crate) fn extend(&mut self, tasks: impl Iterator<Item = AdmittedTask<T, C>>) {
        self.tasks.extend(tasks);
    }

    /// How many tasks wait behind the running one.
    pub(crate) fn waiting(&self) -> usize {
        self.tasks.len() - usize::from(self.running.is_some())
    }

    /// Removes up to `most` waiting tasks, oldest first.
    pub(crate) fn drain(&mut self, most: usize) -> Drain<'_, AdmittedTask<T, C>> {
        let first = usize::from(self.running.is_some());
        self.tasks.drain(first..first.saturating_add(most).min(self.tasks.len()))
    }

    /// Removes all waiting tasks.
    pub(crate) fn drain_all(&mut self) -> Drain<'_, AdmittedTask<T, C>> {
        self.drain(usize::MAX)
    }

    /// Removes the waiting tasks that match.
    pub(crate) fn extract(
        &mut self,
        matches: impl Fn(&AdmittedTask<T, C>) -> bool,
    ) -> Vec<AdmittedTask<T, C>> {
        let running = if self.running.is_some() { self.tasks.pop_front() } else { None };
        let out = extract(&mut self.tasks, matches);
        if let Some(running) = running {
            self.tasks.push_front(running);
        }
        out
    }
}
