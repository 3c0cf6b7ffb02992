//! The quarantine: tasks that came back from crashed workers run here alone, one at a time.
//!
//! Before a run its worker writes its incarnation to the lifecycle log, and after it that the run is
//! over. A task that comes back is asked for its last run: only if exactly that worker crashed does the
//! run count against it. The mark is a record of its own and not a header of the task, because only the
//! broker decides which worker gets a marked copy.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_pool::Phase;
use garenne_protocol::task::{DeadReason, Envelope, TaskId, WorkerIncarnation, epoch_ms};
use tokio::sync::OwnedSemaphorePermit;

use super::LanePipeline;
use crate::{batch::Record, consumer::Delivery, registry::Entry};

/// Runs alone that ended with the crash of their worker.
const POISONOUS_RUNS: u32 = 2;
/// How long a task is handed on whose kind no worker of the fleet has. Its workers may just be restarted,
/// perhaps because they crashed over it: orchestrators wait up to five minutes between two restarts.
const HANDLER_GRACE: Duration = Duration::from_secs(600);
/// How often a task that waits is looked at: its channel may die and the worker may stop.
const LOOK: Duration = Duration::from_millis(100);

/// How long the record of a run's end is waited for.
const LAST_ANSWER_GRACE: Duration = Duration::from_secs(1);

/// A run in the quarantine; the next one starts after it is dropped.
pub(super) struct QuarantineRun {
    task: TaskId,
    _turn: OwnedSemaphorePermit,
}

/// What is in the quarantine.
pub(super) enum Quarantined {
    Task(Arc<Envelope>),
    Pack(Arc<Envelope>, Arc<[Record]>),
}

impl Quarantined {
    fn envelope(&self) -> &Arc<Envelope> {
        match self {
            Self::Task(envelope) | Self::Pack(envelope, _) => envelope,
        }
    }
}

/// What a task's last run means for it.
#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    /// It may run.
    QuarantineRun,
    /// Its run crashed this worker. That makes so many.
    Crashed(WorkerIncarnation, u32),
}

/// Counts a crash on top of those that the task's headers tell of. One that turned out to be none, since
/// that worker is alive, does not count any longer.
fn count(task: &Envelope, crashed: WorkerIncarnation, earlier_stands: bool) -> Judgement {
    let earlier = if earlier_stands { task.quarantine_runs } else { 0 };
    Judgement::Crashed(crashed, earlier.saturating_add(1))
}

/// What is done about a task that has no handler here.
#[derive(Debug, PartialEq, Eq)]
enum Unhandled {
    /// Another worker gets it; it has been waiting since then, milliseconds since 1970.
    HandOn { since: i64 },
    /// No worker of the fleet has a handler for it.
    Unknown,
}

impl Unhandled {
    fn of(task: &Envelope, handled_elsewhere: bool, now: i64) -> Self {
        // The longest wait begins now: a time in the future is another clock's, or forged.
        let since = task.quarantine_since.unwrap_or(now).min(now);
        let grace = i64::try_from(HANDLER_GRACE.as_millis()).unwrap_or(i64::MAX);
        if handled_elsewhere || now.saturating_sub(since) < grace {
            Self::HandOn { since }
        } else {
            Self::Unknown
        }
    }
}

impl LanePipeline {
    /// Takes what is in the quarantine: settles it, or runs it alone.
    pub(super) async fn quarantined(
        self: Arc<Self>,
        delivery: Delivery,
        suspect: Quarantined,
        entry: Option<Arc<Entry>>,
    ) {
        let task = Arc::clone(suspect.envelope());
        if !task.id_given {
            // Without an id a run that ends in a crash could not be told to be its own.
            return self.settler.quarantine(&self.lane, delivery, &task);
        }
        match self.unless_over(&delivery, self.judge(&delivery, &task)).await {
            Some(Judgement::QuarantineRun) => {}
            Some(Judgement::Crashed(who, runs)) => return self.crashed(delivery, suspect, &who, runs),
            None => return,
        }
        let Some(entry) = entry else { return self.unhandled(delivery, &suspect).await };
        if let Quarantined::Pack(batch, records) = &suspect
            && entry.options.deadline.is_some()
        {
            // Each of its records needs a deadline and a run of its own.
            return self.quarantine_all(delivery, batch, records);
        }
        let turn = Arc::clone(&self.alone).acquire_owned();
        let Some(Ok(turn)) = self.unless_over(&delivery, turn).await else { return };
        if self.unless_over(&delivery, self.member.run_started(task.id.as_str())).await.is_none() {
            return;
        }
        let run = QuarantineRun { task: task.id.clone(), _turn: turn };
        let ready = match suspect {
            Quarantined::Task(envelope) => self.ready(delivery, envelope, entry, Some(run)),
            Quarantined::Pack(batch, records) => self.ready_pack(delivery, batch, records, entry, Some(run)),
        };
        self.enter(VecDeque::from([ready])).await;
    }

    /// Whether the last run of a task that came back ended in a crash.
    async fn judge(&self, delivery: &Delivery, task: &Envelope) -> Judgement {
        if !delivery.redelivered {
            return Judgement::QuarantineRun;
        }
        let counted = task.quarantine_worker.as_ref();
        let Some(crashed) = self.member.crashed_run(task.id.as_str(), counted).await else {
            return Judgement::QuarantineRun;
        };
        let earlier_stands = match counted {
            Some(earlier) => self.member.has_crashed(earlier).await,
            None => false,
        };
        count(task, crashed, earlier_stands)
    }

    /// A run ended in a crash. A batch is taken apart, and each record is judged by itself; so the batches that
    /// only happened to be near run once and are cleared.
    fn crashed(&self, delivery: Delivery, suspect: Quarantined, who: &WorkerIncarnation, runs: u32) {
        match suspect {
            Quarantined::Pack(batch, records) => self.quarantine_all(delivery, &batch, &records),
            Quarantined::Task(task) if runs >= POISONOUS_RUNS => {
                let error = format!("its worker crashed in each of {runs} runs alone, last {who}");
                let span = self.spans.attempt(&task);
                self.settler.dead(&self.lane, delivery, Some(task), DeadReason::Poison, error, &span);
            }
            Quarantined::Task(task) => self.settler.quarantine_again(delivery, &task, runs, who),
        }
    }

    /// No handler here: another worker may have one.
    async fn unhandled(&self, delivery: Delivery, suspect: &Quarantined) {
        let task = suspect.envelope();
        let now = epoch_ms(SystemTime::now());
        let elsewhere = self.member.has_handler(task.kind.as_str());
        match Unhandled::of(task, elsewhere, now) {
            Unhandled::HandOn { since } => self.settler.hand_on(delivery, task, since),
            Unhandled::Unknown => {
                let error = format!("no worker has a handler for kind {:?}", task.kind.as_str());
                match suspect {
                    Quarantined::Task(task) => {
                        let (span, reason) = (self.spans.attempt(task), DeadReason::UnknownKind);
                        self.settler.dead(&self.lane, delivery, Some(Arc::clone(task)), reason, error, &span);
                    }
                    Quarantined::Pack(_, records) => {
                        self.all_dead(delivery, records, DeadReason::UnknownKind, &error);
                    }
                }
            }
        }
    }

    /// Waits, unless the delivery's channel dies or the worker stops: then the message is, or goes, back
    /// with the broker.
    async fn unless_over<T>(&self, delivery: &Delivery, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                () = tokio::time::sleep(LOOK) => {
                    if !delivery.alive() || self.pool.snapshot().phase != Phase::Open {
                        return None;
                    }
                }
            }
        }
    }

    /// AttemptEnds a run and then settles its task. That the run is over is on record before the message can go
    /// to another worker.
    pub(super) fn end_run(
        self: &Arc<Self>,
        run: Option<QuarantineRun>,
        settle: impl FnOnce() + Send + 'static,
    ) {
        let Some(run) = run else { return settle() };
        let this = Arc::clone(self);
        let ending = async move {
            // A broker that does not answer gets no settlement either.
            let _ = tokio::time::timeout(LAST_ANSWER_GRACE, this.member.run_ended(run.task.as_str())).await;
            drop(run);
            settle();
        };
        self.settler.tracker.spawn_on(ending, &self.settler.runtime);
    }
}

#[cfg(test)]
mod tests;
