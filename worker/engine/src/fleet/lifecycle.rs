//! The lifecycle log: which workers started, stopped cleanly or crashed, and which quarantined task each of them
//! runs.
//!
//! A redelivery count does not show whether a worker crashed or requeued the task: before RabbitMQ 4.3 every
//! requeue counts, and a lost connection always does. The log shows it: a crashed worker has a start record and no
//! stop record, and its exclusive queue is gone.

use std::{collections::BTreeMap, time::Duration};

use garenne_protocol::{
    task::{WorkerIncarnation, matches_binding, span_ms},
    topology::LIFECYCLE_KEPT,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// A record of the lifecycle stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LifecycleRecord {
    pub(crate) worker: String,
    pub(crate) incarnation: String,
    /// In milliseconds since the Unix epoch.
    pub(crate) at: i64,
    #[serde(flatten)]
    pub(crate) event: LifecycleEvent,
}

/// A record's statement about its worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum LifecycleEvent {
    /// The start record: it starts to consume, and has handlers for these kinds. It repeats the record after a
    /// reconnect, and before the stream drops the previous one.
    Hello(Handlers),
    /// The stop record: it stopped after it settled every delivery.
    Goodbye,
    /// Another worker found its control queue missing.
    Died,
    /// It is about to run a quarantined task.
    RunStarted { task: String },
    /// That run has ended, with any outcome.
    RunEnded { task: String },
}

/// The kinds, and the patterns of kinds, that a worker has handlers for, and the lanes that it takes them from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Handlers {
    pub(crate) kinds: Vec<String>,
    /// Whether it consumes the catch-all lane and has handlers for kinds that no lane's bindings match.
    pub(crate) catch_all: bool,
    /// The lanes that it consumes, without the catch-all lane unless it has handlers for its tasks. [`None`] in the
    /// records of earlier versions, whose workers consume every lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lanes: Option<Vec<String>>,
}

impl Handlers {
    fn has(&self, kind: &str) -> bool {
        self.kinds.iter().any(|one| matches_binding(one, kind))
    }

    fn takes_from(&self, lane: &str) -> bool {
        self.lanes.as_ref().is_none_or(|lanes| lanes.iter().any(|one| one == lane))
    }
}

/// The running workers that have a handler for a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KindWorkers {
    /// All of them, whatever lanes they consume.
    pub(crate) anywhere: usize,
    /// Those that consume the lane in question.
    pub(crate) in_lane: usize,
    /// All running workers that consume the lane, with the handler or without it.
    pub(crate) lane_consumers: usize,
}

/// The workers of the fleet and their runs of quarantined tasks, as read from the lifecycle stream.
#[derive(Debug, Default)]
pub(crate) struct LifecycleLog {
    /// By incarnation.
    workers: BTreeMap<String, LoggedWorker>,
    /// The runs of each quarantined task that have not ended, oldest first, by task id. There may be several messages with
    /// one id, so that a run starts before it is known that the worker of an earlier one crashed.
    runs: BTreeMap<String, Vec<LoggedRun>>,
}

#[derive(Debug)]
struct LoggedWorker {
    name: String,
    handlers: Handlers,
    state: LoggedState,
    /// The time in the record that led to this state. A crash keeps the time of its first record.
    at: i64,
}

/// The state of an incarnation in the log. Times are those at which this worker read the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoggedState {
    /// It started and has not stopped.
    Running {
        /// When its latest start record was read.
        last_seen: Instant,
    },
    /// It stopped cleanly.
    Stopped,
    /// Its queue was found missing, and it has written no record since.
    QueueMissing {
        /// When the first record of that was read.
        since: Instant,
    },
    /// A later incarnation of the same worker started. Two incarnations cannot hold the exclusive queue.
    Replaced,
}

impl LoggedWorker {
    fn is_running(&self) -> bool {
        matches!(self.state, LoggedState::Running { .. })
    }
}

#[derive(Debug)]
struct LoggedRun {
    by: WorkerIncarnation,
    at: i64,
}

/// How many runs of one task are kept.
const MOST_RUNS: usize = 16;

/// How long a crash counts as a possible effect of tasks that were redelivered.
const RECENT_CRASH: Duration = Duration::from_secs(3600);

impl LifecycleLog {
    /// Applies a record that is read at `now`.
    pub(crate) fn apply(&mut self, record: LifecycleRecord, now: Instant) {
        let LifecycleRecord { worker: name, incarnation, at, event } = record;
        match event {
            LifecycleEvent::Hello(handlers) => {
                self.replace_earlier_incarnations(&name, &incarnation, at);
                let state = LoggedState::Running { last_seen: now };
                self.workers.insert(incarnation, LoggedWorker { name, handlers, state, at });
            }
            LifecycleEvent::Goodbye => {
                self.remove_runs(|_, run| run.by.incarnation() == incarnation);
                let (handlers, state) = (Handlers::default(), LoggedState::Stopped);
                self.workers.insert(incarnation, LoggedWorker { name, handlers, state, at });
            }
            LifecycleEvent::Died => {
                let (handlers, state) = (Handlers::default(), LoggedState::Running { last_seen: now });
                let unknown = LoggedWorker { name, handlers, state, at };
                let worker = self.workers.entry(incarnation).or_insert(unknown);
                // The record changes neither a clean stop nor a crash that is known already.
                if worker.is_running() {
                    worker.state = LoggedState::QueueMissing { since: now };
                    worker.at = at;
                }
            }
            LifecycleEvent::RunStarted { task } => {
                // A worker runs one quarantined task at a time.
                self.remove_runs(|_, run| run.by.incarnation() == incarnation);
                let runs = self.runs.entry(task).or_default();
                runs.drain(..(runs.len() + 1).saturating_sub(MOST_RUNS));
                runs.push(LoggedRun { by: WorkerIncarnation::new(name, incarnation), at });
            }
            LifecycleEvent::RunEnded { task } => {
                self.remove_runs(|of, run| of == task && run.by.incarnation() == incarnation);
            }
        }
    }

    fn remove_runs(&mut self, is_removed: impl Fn(&str, &LoggedRun) -> bool) {
        self.runs.retain(|task, runs| {
            runs.retain(|run| !is_removed(task, run));
            !runs.is_empty()
        });
    }

    /// A start record shows that earlier incarnations of the worker are gone.
    fn replace_earlier_incarnations(&mut self, name: &str, incarnation: &str, at: i64) {
        for (id, worker) in &mut self.workers {
            if id == incarnation || worker.name != name || worker.state == LoggedState::Stopped {
                continue;
            }
            if worker.is_running() {
                worker.at = at;
            }
            worker.state = LoggedState::Replaced;
        }
    }

    /// The incarnations without a stop record or a known crash.
    pub(crate) fn running(&self) -> Vec<WorkerIncarnation> {
        let running = self.workers.iter().filter(|(_, worker)| worker.is_running());
        running.map(|(id, worker)| WorkerIncarnation::new(worker.name.clone(), id)).collect()
    }

    /// The number of crashes within [`RECENT_CRASH`] before `now`, in milliseconds since the Unix epoch.
    pub(crate) fn recent_crashes(&self, now: i64) -> usize {
        let oldest = now.saturating_sub(span_ms(RECENT_CRASH));
        let crashed = |worker: &&LoggedWorker| !worker.is_running() && worker.state != LoggedState::Stopped;
        self.workers.values().filter(crashed).filter(|worker| worker.at >= oldest).count()
    }

    /// The logged state of an incarnation. [`None`] if the log has no record of it, or none any more.
    pub(super) fn state_of(&self, worker: &WorkerIncarnation) -> Option<LoggedState> {
        let logged = self.workers.get(worker.incarnation())?;
        (logged.name == worker.worker()).then_some(logged.state)
    }

    /// The incarnations that started runs of a quarantined task that have not ended, in the order of these runs.
    pub(crate) fn runners_of(&self, task: &str) -> impl Iterator<Item = &WorkerIncarnation> {
        self.runs.get(task).into_iter().flatten().map(|run| &run.by)
    }

    /// The running workers with a handler for this kind, and which of them consume the lane.
    pub(crate) fn workers_of(&self, kind: &str, lane: &str) -> KindWorkers {
        let mut found = KindWorkers::default();
        for LoggedWorker { handlers, .. } in self.workers.values().filter(|worker| worker.is_running()) {
            let (has_kind, takes) = (handlers.has(kind), handlers.takes_from(lane));
            found.anywhere += usize::from(has_kind);
            found.in_lane += usize::from(has_kind && takes);
            found.lane_consumers += usize::from(takes);
        }
        found
    }

    /// The incarnations of the running workers with a handler for this kind.
    pub(crate) fn running_with(&self, kind: &str) -> Vec<WorkerIncarnation> {
        let running = self.workers.iter().filter(|(_, it)| it.is_running() && it.handlers.has(kind));
        running.map(|(id, worker)| WorkerIncarnation::new(worker.name.clone(), id)).collect()
    }

    /// Whether a running worker other than `incarnation` consumes the catch-all lane for its own handlers.
    pub(crate) fn serves_catch_all(&self, incarnation: &str) -> bool {
        self.workers
            .iter()
            .any(|(id, worker)| id != incarnation && worker.is_running() && worker.handlers.catch_all)
    }

    /// Removes entries that the stream does not keep either. `now` is in milliseconds since the Unix epoch.
    pub(crate) fn remove_expired(&mut self, now: i64) {
        let oldest = now.saturating_sub(span_ms(LIFECYCLE_KEPT));
        self.workers.retain(|_, worker| worker.at >= oldest);
        self.remove_runs(|_, run| run.at < oldest);
    }
}

#[cfg(test)]
mod tests;
