//! The lifecycle log: which workers started, which ended cleanly, which crashed, and which task each of
//! them runs in the quarantine.
//!
//! A redelivery count alone cannot tell a crash from a hand-back: before RabbitMQ 4.3 every return
//! counts, and a lost connection always does. The log can: a crashed worker wrote a start record and no
//! end record, and its exclusive queue is gone.

use std::{collections::HashMap, time::Duration};

use garenne_protocol::{task::WorkerIncarnation, topology::LIFECYCLE_KEPT};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::crash::Recorded;

/// A record of the stream. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum LifecycleEvent {
    /// A worker begins to consume, does so again after it lost its connection, or is still there: it
    /// repeats the record before the stream lets go of it.
    Hello {
        worker: String,
        incarnation: String,
        at: i64,
        /// The kinds that it has handlers for.
        #[serde(default)]
        kinds: Vec<String>,
    },
    /// It stopped after settling everything.
    Goodbye { worker: String, incarnation: String, at: i64 },
    /// Another worker found its queue missing.
    Died { worker: String, incarnation: String, at: i64 },
    /// It is about to run a task of the quarantine.
    RunStarted { worker: String, incarnation: String, at: i64, task: String },
    /// That run is over, whatever its outcome.
    RunEnded { worker: String, incarnation: String, at: i64, task: String },
}

/// The workers of the fleet and their runs in the quarantine, as far as the log tells.
#[derive(Debug, Default)]
pub(crate) struct LifecycleLog {
    /// By incarnation.
    workers: HashMap<String, Worker>,
    /// By task: the run in the quarantine that was started last.
    runs: HashMap<String, Run>,
}

#[derive(Debug)]
struct Worker {
    name: String,
    kinds: Vec<String>,
    state: State,
    /// The time of its latest record.
    at: i64,
}

#[derive(Debug)]
enum State {
    Open { heard: Instant },
    Ended,
    Crashed { at: i64, noticed: Instant, replaced: bool },
}

#[derive(Debug)]
struct Run {
    by: WorkerIncarnation,
    at: i64,
}

/// How long a crash speaks against tasks that came back.
const EVIDENCE: Duration = Duration::from_secs(3600);

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

impl LifecycleLog {
    /// Takes a record that is read at `now`.
    pub(crate) fn apply(&mut self, life: LifecycleEvent, now: Instant) {
        match life {
            LifecycleEvent::Hello { worker, incarnation, at, kinds } => {
                self.started(worker, incarnation, at, kinds, now);
            }
            LifecycleEvent::Goodbye { worker, incarnation, at } => {
                self.runs.retain(|_, run| run.by.incarnation() != incarnation);
                self.workers
                    .insert(incarnation, Worker { name: worker, kinds: Vec::new(), state: State::Ended, at });
            }
            LifecycleEvent::Died { worker, incarnation, at } => self.died(worker, incarnation, at, now),
            LifecycleEvent::RunStarted { worker, incarnation, at, task } => {
                // A worker runs one task of the quarantine at a time.
                self.runs.retain(|_, run| run.by.incarnation() != incarnation);
                self.runs.insert(task, Run { by: WorkerIncarnation::new(worker, incarnation), at });
            }
            LifecycleEvent::RunEnded { incarnation, task, .. } => {
                if self.runs.get(&task).is_some_and(|run| run.by.incarnation() == incarnation) {
                    self.runs.remove(&task);
                }
            }
        }
    }

    /// A new incarnation under a name means that the one before it is gone: two cannot hold the same
    /// exclusive queue.
    fn started(&mut self, name: String, incarnation: String, at: i64, kinds: Vec<String>, now: Instant) {
        let others = self.workers.iter_mut().filter(|(other, it)| **other != incarnation && it.name == name);
        for (_, other) in others {
            match &mut other.state {
                State::Open { .. } => {
                    other.state = State::Crashed { at, noticed: now, replaced: true };
                    other.at = at;
                }
                State::Crashed { replaced, .. } => *replaced = true,
                State::Ended => {}
            }
        }
        self.workers.insert(incarnation, Worker { name, kinds, state: State::Open { heard: now }, at });
    }

    fn died(&mut self, name: String, incarnation: String, at: i64, now: Instant) {
        let crashed = State::Crashed { at, noticed: now, replaced: false };
        match self.workers.get_mut(&incarnation) {
            Some(worker) if matches!(worker.state, State::Open { .. }) => {
                worker.state = crashed;
                worker.at = at;
            }
            // It is on record already, or ended cleanly.
            Some(_) => {}
            None => {
                self.workers.insert(incarnation, Worker { name, kinds: Vec::new(), state: crashed, at });
            }
        }
    }

    /// The workers that started and may have crashed since.
    pub(crate) fn open(&self) -> Vec<WorkerIncarnation> {
        let open = self.workers.iter().filter(|(_, worker)| matches!(worker.state, State::Open { .. }));
        open.map(|(incarnation, worker)| WorkerIncarnation::new(worker.name.clone(), incarnation)).collect()
    }

    /// Crashes that still count at `now`, milliseconds since 1970.
    pub(crate) fn deaths(&self, now: i64) -> usize {
        let oldest = now.saturating_sub(ms(EVIDENCE));
        let recent = |worker: &&Worker| matches!(worker.state, State::Crashed { at, .. } if at >= oldest);
        self.workers.values().filter(recent).count()
    }

    /// What is on record of an incarnation.
    pub(super) fn recorded(&self, who: &WorkerIncarnation) -> Recorded {
        match self.workers.get(who.incarnation()).filter(|worker| worker.name == who.worker()) {
            None => Recorded::Nothing,
            Some(worker) => match worker.state {
                State::Open { heard } => Recorded::Open { heard },
                State::Ended => Recorded::Ended,
                State::Crashed { replaced: true, .. } => Recorded::Replaced,
                State::Crashed { noticed, .. } => Recorded::Missing { since: noticed },
            },
        }
    }

    /// Who started the latest run of a task in the quarantine that is not known to be over.
    pub(crate) fn run_of(&self, task: &str) -> Option<&WorkerIncarnation> {
        self.runs.get(task).map(|run| &run.by)
    }

    /// Whether a worker that may be alive has a handler for this kind.
    pub(crate) fn has_handler(&self, kind: &str) -> bool {
        let has = |worker: &Worker| {
            matches!(worker.state, State::Open { .. }) && worker.kinds.iter().any(|one| one == kind)
        };
        self.workers.values().any(has)
    }

    /// Lets go of what the stream does not keep either, at `now`, milliseconds since 1970.
    pub(crate) fn forget(&mut self, now: i64) {
        let oldest = now.saturating_sub(ms(LIFECYCLE_KEPT));
        self.workers.retain(|_, worker| worker.at >= oldest);
        self.runs.retain(|_, run| run.at >= oldest);
        self.workers.shrink_to_fit();
        self.runs.shrink_to_fit();
    }

    /// Entries held, for the tests of their bounds.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.workers.len() + self.runs.len()
    }
}

#[cfg(test)]
mod tests;
