//! The lifecycle log: which workers started, stopped cleanly or crashed, and which quarantined task each of them
//! runs.
//!
//! A redelivery count does not show whether a worker crashed or requeued the task: before RabbitMQ 4.3 every
//! requeue counts, and a lost connection always does. The log shows it: a crashed worker has a start record and no
//! stop record, and its exclusive queue is gone.

use std::{collections::HashMap, time::Duration};

use garenne_protocol::{task::WorkerIncarnation, topology::LIFECYCLE_KEPT};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::crash_detector::LoggedState;

/// A record of the lifecycle stream. Times are in milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum LifecycleEvent {
    /// The start record: a worker starts to consume. It repeats the record after a reconnect, and before the
    /// stream drops the previous one.
    Hello {
        worker: String,
        incarnation: String,
        at: i64,
        /// The kinds for which it has handlers.
        #[serde(default)]
        kinds: Vec<String>,
    },
    /// The stop record: it stopped after it settled every delivery.
    Goodbye { worker: String, incarnation: String, at: i64 },
    /// Another worker found its control queue missing.
    Died { worker: String, incarnation: String, at: i64 },
    /// It is about to run a quarantined task.
    RunStarted { worker: String, incarnation: String, at: i64, task: String },
    /// That run has ended, with any outcome.
    RunEnded { worker: String, incarnation: String, at: i64, task: String },
}

/// The workers of the fleet and their runs of quarantined tasks, as read from the lifecycle stream.
#[derive(Debug, Default)]
pub(crate) struct LifecycleLog {
    /// By incarnation.
    workers: HashMap<String, LoggedWorker>,
    /// The latest run of each quarantined task, by task id.
    runs: HashMap<String, LoggedRun>,
}

#[derive(Debug)]
struct LoggedWorker {
    name: String,
    kinds: Vec<String>,
    state: WorkerState,
    /// The time in the latest record that concerns it.
    at: i64,
}

#[derive(Debug)]
enum WorkerState {
    Running { last_seen: Instant },
    Stopped,
    Crashed { at: i64, noticed: Instant, replaced: bool },
}

#[derive(Debug)]
struct LoggedRun {
    by: WorkerIncarnation,
    at: i64,
}

/// How long a crash counts as a possible effect of tasks that were redelivered.
const RECENT_CRASH: Duration = Duration::from_secs(3600);

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

impl LifecycleLog {
    /// Applies a record that is read at `now`.
    pub(crate) fn apply(&mut self, event: LifecycleEvent, now: Instant) {
        match event {
            LifecycleEvent::Hello { worker, incarnation, at, kinds } => {
                self.apply_hello(worker, incarnation, at, kinds, now);
            }
            LifecycleEvent::Goodbye { worker, incarnation, at } => {
                self.runs.retain(|_, run| run.by.incarnation() != incarnation);
                let state = WorkerState::Stopped;
                self.workers.insert(incarnation, LoggedWorker { name: worker, kinds: Vec::new(), state, at });
            }
            LifecycleEvent::Died { worker, incarnation, at } => self.apply_died(worker, incarnation, at, now),
            LifecycleEvent::RunStarted { worker, incarnation, at, task } => {
                // A worker runs one quarantined task at a time.
                self.runs.retain(|_, run| run.by.incarnation() != incarnation);
                self.runs.insert(task, LoggedRun { by: WorkerIncarnation::new(worker, incarnation), at });
            }
            LifecycleEvent::RunEnded { incarnation, task, .. } => {
                if self.runs.get(&task).is_some_and(|run| run.by.incarnation() == incarnation) {
                    self.runs.remove(&task);
                }
            }
        }
    }

    /// A start record shows that earlier incarnations of the worker are gone, because two incarnations cannot hold
    /// the exclusive queue.
    fn apply_hello(&mut self, name: String, incarnation: String, at: i64, kinds: Vec<String>, now: Instant) {
        let earlier = self.workers.iter_mut().filter(|(id, it)| **id != incarnation && it.name == name);
        for (_, earlier) in earlier {
            match &mut earlier.state {
                WorkerState::Running { .. } => {
                    earlier.state = WorkerState::Crashed { at, noticed: now, replaced: true };
                    earlier.at = at;
                }
                WorkerState::Crashed { replaced, .. } => *replaced = true,
                WorkerState::Stopped => {}
            }
        }
        let state = WorkerState::Running { last_seen: now };
        self.workers.insert(incarnation, LoggedWorker { name, kinds, state, at });
    }

    fn apply_died(&mut self, name: String, incarnation: String, at: i64, now: Instant) {
        let crashed = WorkerState::Crashed { at, noticed: now, replaced: false };
        match self.workers.get_mut(&incarnation) {
            Some(worker) if matches!(worker.state, WorkerState::Running { .. }) => {
                worker.state = crashed;
                worker.at = at;
            }
            // The crash is known already, or the worker stopped cleanly.
            Some(_) => {}
            None => {
                self.workers
                    .insert(incarnation, LoggedWorker { name, kinds: Vec::new(), state: crashed, at });
            }
        }
    }

    /// The incarnations without a stop record or a known crash.
    pub(crate) fn running(&self) -> Vec<WorkerIncarnation> {
        let running =
            self.workers.iter().filter(|(_, worker)| matches!(worker.state, WorkerState::Running { .. }));
        running
            .map(|(incarnation, worker)| WorkerIncarnation::new(worker.name.clone(), incarnation))
            .collect()
    }

    /// The number of crashes within [`RECENT_CRASH`] before `now`, in milliseconds since the Unix epoch.
    pub(crate) fn recent_crashes(&self, now: i64) -> usize {
        let oldest = now.saturating_sub(ms(RECENT_CRASH));
        let recent =
            |worker: &&LoggedWorker| matches!(worker.state, WorkerState::Crashed { at, .. } if at >= oldest);
        self.workers.values().filter(recent).count()
    }

    /// The logged state of an incarnation.
    pub(super) fn state_of(&self, worker: &WorkerIncarnation) -> LoggedState {
        match self.workers.get(worker.incarnation()).filter(|logged| logged.name == worker.worker()) {
            None => LoggedState::Unknown,
            Some(logged) => match logged.state {
                WorkerState::Running { last_seen } => LoggedState::Running { last_seen },
                WorkerState::Stopped => LoggedState::Stopped,
                WorkerState::Crashed { replaced: true, .. } => LoggedState::Replaced,
                WorkerState::Crashed { noticed, .. } => LoggedState::QueueMissing { since: noticed },
            },
        }
    }

    /// The incarnation that started the latest run of a quarantined task, unless that run has ended.
    pub(crate) fn runner_of(&self, task: &str) -> Option<&WorkerIncarnation> {
        self.runs.get(task).map(|run| &run.by)
    }

    /// Whether a running worker has a handler for this kind.
    pub(crate) fn has_handler(&self, kind: &str) -> bool {
        let has = |worker: &LoggedWorker| {
            matches!(worker.state, WorkerState::Running { .. }) && worker.kinds.iter().any(|one| one == kind)
        };
        self.workers.values().any(has)
    }

    /// Removes entries that the stream does not keep either. `now` is in milliseconds since the Unix epoch.
    pub(crate) fn remove_expired(&mut self, now: i64) {
        let oldest = now.saturating_sub(ms(LIFECYCLE_KEPT));
        self.workers.retain(|_, worker| worker.at >= oldest);
        self.runs.retain(|_, run| run.at >= oldest);
        self.workers.shrink_to_fit();
        self.runs.shrink_to_fit();
    }

    /// The number of entries, for tests of their bound.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.workers.len() + self.runs.len()
    }
}

#[cfg(test)]
mod tests;
