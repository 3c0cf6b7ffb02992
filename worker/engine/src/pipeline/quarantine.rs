//! The quarantine: tasks that may crash workers run here alone, one at a time.
//!
//! A task that was returned at least [`SUSPICIOUS_RETURNS`] times is moved here if at least [`SUSPICIOUS_CRASHES`] workers
//! crashed within the hour. A task that crashed its worker in [`POISON_RUNS`] runs here is dead-lettered as poison.
//!
//! Before a run, the worker writes `run-started` with the task's id and its own incarnation to the lifecycle
//! stream, and `run-ended` after it. When a task is redelivered, the worker that receives it looks up the runs
//! that have not ended: each counts against the task only if the worker of exactly that run crashed. There may be several
//! messages with one id, whose runs begin before the crash of another one is known. The mark is a record in the stream and
//! not a header of the task, because with two workers the broker never delivers a marked copy to the worker that marked it.

use std::{sync::Arc, time::Duration};

use garenne_common::{clock, random};
use garenne_pool::Phase;
use garenne_protocol::{
    task::{DeadReason, Envelope, TaskId, WorkerIncarnation, epoch_ms},
    topology::{Ladder, Names},
};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    LanePipeline,
    key_limits::DEFERRAL,
    unhandled::{next_delay, waited, waiting_since},
};
use crate::{consumer::Delivery, in_flight::InFlight, registry::RegistryEntry, settlement::Settler};

/// Redeliveries from which on a task may be the cause of crashes.
pub(super) const SUSPICIOUS_RETURNS: u32 = 2;
/// Recent crashes in the fleet from which on such a task is quarantined.
const SUSPICIOUS_CRASHES: usize = 2;
/// Crashed runs in the quarantine after which a task is dead-lettered as poison.
const POISON_RUNS: u32 = 2;
/// How often a waiting task checks whether its channel died or the worker is shutting down.
const ABORT_CHECK: Duration = Duration::from_millis(100);
/// How long to wait until `run-ended` is confirmed. A broker that does not confirm it gets no settlement either.
const RUN_ENDED_TIMEOUT: Duration = Duration::from_secs(1);

/// A run in the quarantine. The next run may start once it is dropped.
pub(super) struct QuarantineRun {
    task: TaskId,
    _permit: OwnedSemaphorePermit,
}

/// Whether a task was redelivered so often that it may be the cause of crashes.
pub(super) fn is_suspicious(task: &Envelope) -> bool {
    task.returns() >= SUSPICIOUS_RETURNS
}

/// The crashed runs of a task, with the latest ones. `earlier_stands` is false if the worker of the crash that was counted
/// last turned out to be alive; then the earlier count in the task's headers is discarded.
fn count_crashes(task: &Envelope, latest: usize, earlier_stands: bool) -> u32 {
    let earlier = task.quarantine.as_ref().filter(|_| earlier_stands).map_or(0, |record| record.runs);
    earlier.saturating_add(u32::try_from(latest).unwrap_or(u32::MAX))
}

impl LanePipeline {
    /// Moves a suspicious task to the quarantine if workers crashed recently. Otherwise it is dispatched, or deferred if its
    /// key has no place.
    pub(super) async fn quarantine_or_dispatch(self: Arc<Self>, task: InFlight, entry: Arc<RegistryEntry>) {
        if self.member.recent_crashes().await >= SUSPICIOUS_CRASHES {
            return self.settler.quarantine(task).await;
        }
        let Ok(place) = self.key_limits.take(&task.delivery, &task.envelope, &entry.options) else {
            return self.settler.defer(task, DEFERRAL).await;
        };
        let ready = self.prepare(task, entry, place, None);
        self.dispatch([ready].into()).await;
    }

    /// Runs a quarantined task when no other runs in the quarantine, or settles it without a run.
    pub(super) async fn run_alone(self: Arc<Self>, task: InFlight, entry: Option<Arc<RegistryEntry>>) {
        let InFlight { delivery, envelope, .. } = &task;
        if !envelope.id_given {
            // Crashed runs are found by the task's id, and this one changes with each delivery. The copy keeps it.
            return self.settler.quarantine(task).await;
        }
        match self.unless_aborted(delivery, self.last_crash(&task)).await {
            Some(None) => {}
            Some(Some((worker, runs))) => return self.settle_crashed(task, &worker, runs).await,
            None => return,
        }
        let Some(entry) = entry else { return self.settle_without_handler(task).await };
        if task.batch.is_some() && entry.options.deadline.is_some() {
            // Long tasks cannot run in a batch.
            return self.quarantine_records(task).await;
        }
        let permit = Arc::clone(&self.quarantine_permit).acquire_owned();
        let Some(Ok(permit)) = self.unless_aborted(delivery, permit).await else { return };
        if self.unless_aborted(delivery, self.member.run_started(envelope.id.as_str())).await.is_none() {
            return;
        }
        let run = QuarantineRun { task: envelope.id.clone(), _permit: permit };
        let ready = self.prepare(task, entry, None, Some(run.into()));
        self.dispatch([ready].into()).await;
    }

    /// The worker that crashed last while it ran a task, and the number of crashed runs. [`None`] if the task may run. Waits
    /// until it is known whether the workers of its runs crashed.
    async fn last_crash(&self, task: &InFlight) -> Option<(WorkerIncarnation, u32)> {
        if !task.delivery.head.redelivered {
            return None;
        }
        let counted = task.envelope.quarantine.as_ref().and_then(|record| record.worker.as_ref());
        let crashed = self.member.crashed_runs(task.envelope.id.as_str(), counted).await;
        let last = crashed.last()?.clone();
        let earlier_stands = match counted {
            Some(earlier) => self.member.has_crashed(earlier).await,
            None => false,
        };
        Some((last, count_crashes(&task.envelope, crashed.len(), earlier_stands)))
    }

    /// Settles a task whose last run crashed its worker. A batch is divided first, so that its harmless records
    /// are cleared by their next run.
    async fn settle_crashed(&self, task: InFlight, worker: &WorkerIncarnation, runs: u32) {
        if task.batch.is_some() {
            self.quarantine_records(task).await;
        } else if runs >= POISON_RUNS {
            let error = format!("its worker crashed in each of {runs} runs alone, last {worker}");
            self.settler.dead_letter(task, None, DeadReason::Poison, error).await;
        } else {
            self.settler.quarantine_after_crash(task, runs, worker).await;
        }
    }

    /// Quarantines each record of a batch as a message of its own, so that each is judged by its own runs.
    async fn quarantine_records(&self, mut task: InFlight) {
        if let Some(lane) = task.envelope.lane.as_deref() {
            task.lane = lane.into();
        }
        let quarantine = |settler: Arc<Settler>, record| async move { settler.quarantine(record).await };
        self.settler.settle_each(task, quarantine).await;
    }

    /// Settles a quarantined task that this worker has no handler for. The workers that have one may be restarting,
    /// perhaps because this task crashed them: orchestrators wait up to five minutes between two restarts.
    async fn settle_without_handler(&self, task: InFlight) {
        let envelope = &task.envelope;
        if self.member.workers_of(envelope.kind.as_str(), Names::QUARANTINE).anywhere > 0 {
            // Tasks that all return through the delay queue return in the order of the acks, which is the order in
            // which the broker delivers to the workers: each would reach the same wrong worker without end. A task
            // that does not wait goes to a worker that is idle now, and not to this one, which has not acked it.
            return self.settler.pass_to_other_worker(task, random::chance() < 0.5).await;
        }
        let (now, wait) = (epoch_ms(clock::now()), self.settler.unknown_kind_wait);
        let Some(since) = waiting_since(envelope, wait, now) else {
            return self.dead_letter_unhandled(task).await;
        };
        let delay = next_delay(&Ladder::of_quarantine(), waited(since, now), wait);
        self.settler.wait_in_quarantine(task, since, delay).await;
    }

    /// Waits for `future`. Returns [`None`] if the delivery's channel dies or the worker begins to shut down
    /// first; the caller then drops the delivery, which hands it back.
    pub(super) async fn unless_aborted<T>(
        &self,
        delivery: &Delivery,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let aborted = async {
            while delivery.channel_is_open() && self.pool.snapshot().phase == Phase::Open {
                tokio::time::sleep(ABORT_CHECK).await;
            }
        };
        tokio::select! {
            biased;
            done = future => Some(done),
            () = aborted => None,
        }
    }

    /// Records the end of a run, and lets the next one start.
    pub(super) async fn end_run(&self, run: QuarantineRun) {
        let _ = tokio::time::timeout(RUN_ENDED_TIMEOUT, self.member.run_ended(run.task.as_str())).await;
    }
}

#[cfg(test)]
pub(super) mod tests;
