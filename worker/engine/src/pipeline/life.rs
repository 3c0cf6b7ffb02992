//! The life of a delivery, from top to bottom.
//!
//! ```text
//! read ─► admit ─► wait for a place ─► execute ─► store in the sinks ─► publish follow-ups ─► ack ─► reply
//!  │        │                             │
//!  │        └─► dead-letter, defer,       └─► retry, dead-letter, defer, hand back, abandon
//!  │            quarantine, hand back
//!  ├─► unreadable or too large: dead-letter
//!  ├─► a call that only Celery can run: pass on to Celery's workers
//!  ├─► succeeded here before: ack
//!  └─► still runs here: replace the lost delivery of that attempt
//! ```
//!
//! One value owns the delivery all the time: [`InFlight`]. Dropping it at any step hands the delivery back. A result is
//! stored before its task is acked, and a copy is confirmed before its original is acked. What happens if the channel dies
//! meanwhile is described in `dead_channel`.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::{Duration, SystemTime},
};

use garenne_pool::{Cause, Completion, Ending, Refusal};
use garenne_protocol::task::DeadReason;
use tokio::time::timeout;

use super::{LanePipeline, Ready, checks::NotNow, dispatched::Dispatched};
use crate::{
    attempt::{AttemptEnd, AttemptOutput, Outcome},
    consumer::Delivery,
    dead_channel::{POOL_WAIT_CHECK, take_closed},
    in_flight::InFlight,
    registry::RegistryEntry,
    settlement::{PUT_OFF, Published, Settler},
    sink::SinkAnswer,
};

/// For how long a task is deferred whose handler is not ready.
const NOT_READY: Duration = Duration::from_secs(5);

impl LanePipeline {
    /// Admission: returns the task if it may run now. Otherwise it is settled already, or its settlement continues in the
    /// background.
    pub(super) fn admit(self: &Arc<Self>, delivery: Delivery, now: SystemTime) -> Option<Ready> {
        let task = self.read(delivery, now)?;
        let task = self.unless_done_or_running_here(task)?;
        match self.check(&task, now) {
            Ok((entry, place)) => Some(self.prepare(task, entry, place, None)),
            Err(not_now) => {
                let fingerprint = task.delivery.fingerprint();
                self.admit_later(fingerprint, Arc::clone(self).settle_unadmitted(task, not_now));
                None
            }
        }
    }

    /// Settles a task that may not run now, or runs it once that is known to be harmless.
    async fn settle_unadmitted(self: Arc<Self>, task: InFlight, not_now: NotNow) {
        match not_now {
            NotNow::Dead(reason, error) => self.dead_letter(task, reason, error).await,
            NotNow::Deferred(wait) => self.settler.defer(task, wait).await,
            NotNow::Divided => {
                let defer = |settler: Arc<Settler>, record| async move {
                    settler.defer(record, Duration::ZERO).await;
                };
                self.settler.settle_each(task, defer).await;
            }
            NotNow::LanePaused => task.hand_back(),
            // If the lane is consumed for other kinds, this worker would get the task again at once.
            NotNow::NotReady if !self.quiet.borrow().is_unready => self.settler.defer(task, NOT_READY).await,
            NotNow::NotReady => task.hand_back(),
            NotNow::Unhandled => self.settle_unhandled(task).await,
            NotNow::Suspicious(entry) => self.quarantine_or_dispatch(task, entry).await,
            NotNow::Quarantined(entry) => self.run_alone(task, entry).await,
        }
    }

    /// Waits for places in the pool, whose queue then holds the tasks. If the pool is closed, they are handed back.
    ///
    /// The pool is full only if it still holds tasks of a dead channel. The pool runs [`Attempt::execute`] on clones of the
    /// envelope and the body, because an attempt that ignores its cancellation outlives its settlement.
    ///
    /// [`Attempt::execute`]: crate::attempt::Attempt::execute
    pub(super) async fn dispatch(&self, mut ready: VecDeque<Ready>) {
        while !ready.is_empty() {
            let pool_space = self.pool_space.notified();
            let refused = match self.pool.submit_each(&mut ready) {
                Ok(()) => return,
                Err(Refusal::QueueFull { .. }) => {
                    // The notification may have gone to another waiter, whose tasks are all dead.
                    let _ = timeout(POOL_WAIT_CHECK, pool_space).await;
                    take_closed(&mut ready, |(_, _, dispatched)| dispatched.task.channel_is_open())
                }
                Err(_) => std::mem::take(&mut ready),
            };
            let not_started = || Ending::NotStarted { cause: Cause::Shutdown };
            refused.into_iter().for_each(|(_, _, dispatched)| dispatched.complete(not_started()));
        }
    }
}

/// The pool has ended the task, or the batch.
impl Completion<Option<AttemptOutput>> for Dispatched {
    fn trace_id(&self) -> Option<&str> {
        self.task.trace_id()
    }

    fn complete(self, ending: Ending<Option<AttemptOutput>>) {
        let Self { pipeline, task, entry, place, run } = self;
        drop(place);
        pipeline.pool_space.notify_one();
        let Some(task) = pipeline.settler.redeliveries.release(task) else { return };
        let Some(run) = run else { return pipeline.settle_ending(task, &entry, ending) };
        // No other worker may receive the task before its run in the quarantine is on record as ended.
        Arc::clone(&pipeline.settler).in_background("quarantine-run-end", async move {
            pipeline.end_run(*run).await;
            pipeline.settle_ending(task, &entry, ending);
        });
    }
}

impl LanePipeline {
    fn settle_ending(
        &self,
        task: InFlight,
        entry: &Arc<RegistryEntry>,
        ending: Ending<Option<AttemptOutput>>,
    ) {
        let (settler, deadline) = (&self.settler, self.batch_deadline);
        match task.batch.clone() {
            Some(batch) => settler.settle_batch(task, &batch, entry, ending.map(drop), deadline),
            None => {
                let ending = ending.map(|output| output.expect("a task has an output"));
                settler.settle(task, entry, AttemptEnd::of(ending));
            }
        }
    }
}

impl Settler {
    /// Counts the end of an attempt and [finishes](Self::finish) the task. If there is nothing to await, that is done on the
    /// stack, so that a success without sinks costs neither a spawn nor an allocation.
    pub(crate) fn settle(self: &Arc<Self>, task: InFlight, entry: &Arc<RegistryEntry>, end: AttemptEnd) {
        end.count(&task.span, entry);
        if self.awaits_nothing(&task, &end.outcome) {
            let finishing = pin!(self.finish(task, entry, end));
            let finished = finishing.poll(&mut Context::from_waker(Waker::noop()));
            debug_assert!(finished.is_ready(), "nothing is awaited");
            return;
        }
        let (this, entry) = (Arc::clone(self), Arc::clone(entry));
        self.poll_then_spawn(async move { this.finish(task, &entry, end).await });
    }

    /// Whether [`finish`](Self::finish) has nothing to await.
    fn awaits_nothing(&self, task: &InFlight, outcome: &Outcome) -> bool {
        let Outcome::Done { output, .. } = outcome else {
            return matches!(outcome, Outcome::HandBack | Outcome::Abandon);
        };
        let may_reply = self.replies.is_some() && task.envelope.reply_to.is_some();
        self.sink_buffer.is_empty() && output.follow_ups.is_empty() && output.refused.is_none() && !may_reply
    }

    /// Finishes a task whose attempt has ended.
    pub(crate) async fn finish(&self, task: InFlight, entry: &RegistryEntry, end: AttemptEnd) {
        let attempts = end.counted_as.map(|_| task.envelope.attempt + 1);
        match end.outcome {
            Outcome::Done { mut output, started_at, took } => {
                let (follow_ups, refused) = (std::mem::take(&mut output.follow_ups), output.refused.take());
                let (stored, reply) = self.store(&task, output, started_at, took);
                match stored.await {
                    Some(SinkAnswer::Stored) => {}
                    Some(SinkAnswer::Conflict(detail)) => {
                        return self.dead_letter(task, attempts, DeadReason::Conflict, detail).await;
                    }
                    Some(SinkAnswer::Refused(detail)) => {
                        return self.dead_letter(task, attempts, DeadReason::Rejected, detail).await;
                    }
                    None => return task.hand_back(),
                }
                // After the sinks, because a result that is refused must not start anything. Before the ack, because they
                // would be lost if the worker crashed in between.
                if !follow_ups.is_empty() || refused.is_some() {
                    match Box::pin(self.publish_follow_ups(&task, follow_ups, refused)).await {
                        Published::All => {}
                        Published::GivenUp => return,
                        Published::LettersRefused => return self.defer(task, PUT_OFF).await,
                        Published::TooLarge(error) => {
                            let error = format!("a follow-up cannot be published: {error}");
                            return self.dead_letter(task, attempts, DeadReason::Rejected, error).await;
                        }
                    }
                }
                self.ack(task);
                if let Some(reply) = reply {
                    self.reply(reply).await;
                }
            }
            Outcome::Retry { error, after } => self.retry(task, &entry.options.retry, error, after).await,
            Outcome::Dead { reason, error } => self.dead_letter(task, attempts, reason, error).await,
            Outcome::Defer { wait } => self.defer(task, wait).await,
            Outcome::HandBack => task.hand_back(),
            Outcome::Abandon => task.abandon(),
        }
    }
}

#[cfg(test)]
mod tests {
    use garenne_protocol::settlement::Settlement;
    use tokio::sync::watch;

    use super::*;
    use crate::{
        consumer::{ChannelGeneration, LaneQuiet},
        pipeline::quarantine::tests::lane_env,
    };

    /// A lane that is consumed would deliver it again at once, and in one that is not, a copy is needless.
    #[tokio::test]
    async fn a_task_whose_handler_is_not_ready_is_deferred_while_its_lane_is_consumed_and_else_handed_back() {
        for is_unready in [true, false] {
            let mut env = lane_env().await;
            let quiet = watch::Sender::new(LaneQuiet { is_unready, ..LaneQuiet::default() });
            Arc::get_mut(&mut env.pipeline).unwrap().quiet = quiet.subscribe();
            let task = env.test.task_of(Delivery::mock(&env.test.generation, 1, b"{}"));
            tokio::spawn(Arc::clone(&env.pipeline).settle_unadmitted(task, NotNow::NotReady));
            if !is_unready {
                let copy = env.broker.next().await;
                assert_eq!(copy.key, "garenne.retry.fast.5s");
                copy.ack();
            }
            let expected = if is_unready { Settlement::Requeued } else { Settlement::Retried };
            assert_eq!(env.settlement().await, expected);
        }
    }

    /// No end of a task tells it: those that fill the pool may run for long.
    #[tokio::test]
    async fn a_task_that_waits_for_a_place_in_the_pool_is_dropped_soon_after_its_channel_died() {
        let env = lane_env().await;
        env.pipeline.pool.group("waits").pause();
        let ready = |generation: &Arc<ChannelGeneration>, tag| {
            let task = env.test.task_of(Delivery::mock(generation, tag, b"{}"));
            let (spec, execution, dispatched) =
                env.pipeline.prepare(task, Arc::clone(&env.test.entry), None, None);
            (spec.group("waits"), execution, dispatched)
        };
        let places = env.pipeline.pool.snapshot().queue as u64;
        env.pipeline.dispatch((1..=places).map(|tag| ready(&env.test.generation, tag)).collect()).await;
        let dying = ChannelGeneration::mock();
        let (pipeline, last) = (Arc::clone(&env.pipeline), ready(&dying, 1));
        let mut waiting = tokio::spawn(async move { pipeline.dispatch([last].into()).await });
        assert!(timeout(POOL_WAIT_CHECK, &mut waiting).await.is_err(), "the pool is full");
        dying.end();
        assert!(timeout(20 * POOL_WAIT_CHECK, waiting).await.is_ok());
        assert_eq!(dying.requested_settlements(), [(1, Settlement::Requeued)]);
    }
}
