//! Settlement: acts on the outcome of a task.
//!
//! The last step of a delivery's path, after `consumer` and `pipeline`. [`Settler::settle`] takes the task and
//! the outcome of its attempt:
//!
//! | outcome | steps |
//! | --- | --- |
//! | success | [`write_to_sinks`](Settler::write_to_sinks) → [`publish_follow_ups`](Settler::publish_follow_ups), with a dead letter of what the handler refused → [`ack`](Settler::ack) → [`reply`](Settler::reply) |
//! | retry | [`retry`](Settler::retry): a copy waits in the lane's retry ladder, then ack |
//! | deferral | [`defer`](Settler::defer), [`wait_for_handler`](Settler::wait_for_handler): the same, without spending an attempt |
//! | no handler here, but elsewhere | [`pass_on`](Settler::pass_on): a copy at the end of the lane's queue, then ack |
//! | dead letter | [`dead_letter`](Settler::dead_letter): a copy in `garenne.dead`, then ack |
//! | hand back | the delivery is dropped, and the broker requeues it |
//!
//! The pipeline calls [`defer`](Settler::defer), [`dead_letter`](Settler::dead_letter) and
//! [`quarantine`](Settler::quarantine) directly for tasks that it does not admit.
//!
//! A result is stored before its task is acked, and a copy is confirmed before the original is acked. If a step
//! fails, the original stays unacked and the broker redelivers it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_amqp::{DeadLetters, PublishError, Publisher, Target};
use garenne_common::supervise;
use garenne_common::{
    clock,
    log_limit::LogLimit,
    shutdown::Settlement,
    telemetry::{Metrics, Traces},
};
use garenne_protocol::{
    task::{DeadReason, Envelope, NewTask},
    topology::{Ladder, Names},
};
use tokio::{runtime::Handle, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    consumer::{Delivery, MissingQueues},
    execute::{AttemptEnd, Outcome},
    force_close::after_last_answers,
    handler::{Output, RefusedPart, Routes, WhenDead},
    redelivery::RedeliveryTracker,
    registry::Entry,
    reply_queues::{REPLY_TO, ReplyQueues},
    sink::{FinishedTask, SinkAnswer, SinkBuffer, WaitingTask, results},
    spans::AttemptSpan,
    task_publisher::TaskPublisher,
    unhandled_kinds::UnhandledKinds,
};

mod copies;
mod destinations;
mod orphans;
mod records;
#[cfg(test)]
pub(crate) mod tests;

use copies::{PUT_OFF, Published};
pub(crate) use records::record_places;

/// A task that was delivered and is not settled yet.
///
/// Each method of [`Settler`] that decides about a task consumes it. Dropping it hands the delivery back to the
/// broker.
pub(crate) struct InFlight {
    /// The lane that the task was delivered to.
    pub(crate) lane: Arc<str>,
    pub(crate) delivery: Delivery,
    pub(crate) envelope: Arc<Envelope>,
    /// The span of the attempt. Nothing is recorded unless the task starts or becomes a dead letter.
    pub(crate) span: AttemptSpan,
}

/// What follows a stored result.
struct After {
    follow_ups: Vec<NewTask>,
    refused: Option<RefusedPart>,
}

impl After {
    fn is_nothing(&self) -> bool {
        self.follow_ups.is_empty() && self.refused.is_none()
    }
}

/// How results are sent as replies.
pub(crate) struct Replies {
    /// The queues that they may be sent to.
    pub(crate) allowed: ReplyQueues,
    /// Has a connection of its own, which opens with the first reply. A broker may close it because of an address that a
    /// task names, and copies and dead letters must not end with it.
    pub(crate) publisher: Publisher,
}

/// Settles the tasks of all lanes of a worker.
pub(crate) struct Settler {
    /// The name of this worker.
    pub(crate) worker: Arc<str>,
    pub(crate) names: Names,
    pub(crate) ladder: Ladder,
    /// The maximum number of attempts for kinds whose retry policy sets none.
    pub(crate) max_attempts: u32,
    /// How long tasks wait for a worker with a handler for their kind.
    pub(crate) unknown_kind_wait: Duration,
    /// The kinds whose tasks wait for that.
    pub(crate) unhandled: Arc<UnhandledKinds>,
    /// Makes the task that follows a dead letter of a kind.
    pub(crate) when_dead: BTreeMap<String, WhenDead>,
    /// The lanes that follow-ups and retries are published to.
    pub(crate) routes: Arc<Routes>,
    /// `None` if results are not sent as replies.
    pub(crate) replies: Option<Replies>,
    pub(crate) publisher: Publisher,
    pub(crate) letters: DeadLetters,
    /// Taken by the one letter that is held and tried while neither queue takes any.
    pub(crate) held_letter: Semaphore,
    /// For records of batches that are copied.
    pub(crate) record_places: Arc<Semaphore>,
    /// Declares queues again that a copy could not be routed to.
    pub(crate) missing: Arc<MissingQueues>,
    pub(crate) sink_buffer: SinkBuffer,
    pub(crate) redeliveries: RedeliveryTracker,
    pub(crate) metrics: Metrics,
    /// Bounds the log lines of dead letters, which a publisher can cause as fast as it publishes.
    pub(crate) dead_letter_log: LogLimit<DeadReason>,
    pub(crate) traces: Traces,
    /// The runtime of the broker connections. Tasks complete on other threads.
    pub(crate) runtime: Handle,
    /// Counts results, copies, follow-ups and replies that are not answered yet.
    pub(crate) tracker: TaskTracker,
    /// Cancelled when the shutdown stops waiting. What is pending then is handed back.
    pub(crate) force_close: CancellationToken,
}

impl Settler {
    /// Acts on the end of an attempt. Does not block: what takes time runs on [`Self::runtime`].
    pub(crate) fn settle(self: &Arc<Self>, task: InFlight, entry: &Entry, end: AttemptEnd) {
        let AttemptEnd { outcome, counted_as, duration } = end;
        if let Some(counted_as) = counted_as {
            task.span.set_outcome(counted_as);
            match duration {
                Some(duration) => entry.metrics.ended(counted_as, duration),
                None => entry.metrics.counted(counted_as),
            }
        }
        match outcome {
            Outcome::Done { output, started_at, took } => self.write_to_sinks(task, output, started_at, took),
            Outcome::Retry { error, after } => self.retry(task, &entry.options.retry, error, after),
            Outcome::Dead { reason, error } if counted_as.is_some() => {
                self.dead_letter_after_attempt(task, reason, error);
            }
            Outcome::Dead { reason, error } => self.dead_letter(task, reason, error),
            Outcome::Defer { wait } => self.defer(task, wait),
            Outcome::HandBack => Self::hand_back(task),
            Outcome::Abandon => {
                task.span.end(Settlement::Abandoned, None);
                task.delivery.settle(Settlement::Abandoned);
            }
        }
    }

    /// Waits until no result, copy, follow-up or reply is pending.
    pub(crate) async fn idle(&self) {
        self.tracker.close();
        self.tracker.wait().await;
        self.report_dead_letters();
    }

    /// Offers a result to all sinks. [`Self::sinks_answered`] continues once they have answered.
    fn write_to_sinks(
        self: &Arc<Self>,
        task: InFlight,
        mut output: Output,
        started_at: SystemTime,
        took: Duration,
    ) {
        let wants_reply = self.is_answered(&task.envelope);
        let after =
            After { follow_ups: std::mem::take(&mut output.follow_ups), refused: output.refused.take() };
        if self.sink_buffer.is_empty() && !wants_reply && after.is_nothing() {
            return self.ack(task);
        }
        let (envelope, worker) = (Arc::clone(&task.envelope), Arc::clone(&self.worker));
        let trace = task.span.context(&envelope);
        let finished = FinishedTask { envelope, worker, started_at, took, output, trace };
        let reply = wants_reply.then(|| finished.clone());
        let (span, generation) = (task.span.clone(), task.delivery.generation());
        let this = Arc::clone(self);
        // The tracker counts the result until the sinks have answered.
        let pending = self.tracker.token();
        let answer = move |accepted| {
            let _pending = pending;
            this.sinks_answered(task, after, reply, accepted);
        };
        self.sink_buffer.submit(finished, WaitingTask { span, generation, answer: Box::new(answer) });
    }

    /// Whether the result is sent to the task's `reply_to`. An address that is not allowed is counted and ignored.
    fn is_answered(&self, envelope: &Envelope) -> bool {
        let (Some(replies), Some(queue)) = (&self.replies, &envelope.reply_to) else { return false };
        let is_allowed = replies.allowed.allow(queue);
        if !is_allowed {
            self.metrics.headers_ignored(REPLY_TO).inc();
            tracing::debug!(task = %envelope.id, queue, "ignored a reply_to that reply_queues does not allow");
        }
        is_allowed
    }

    /// Acts on the sinks' answer. [`None`] means that they gave none before the channel or the worker closed.
    fn sinks_answered(
        self: &Arc<Self>,
        task: InFlight,
        after: After,
        reply: Option<FinishedTask>,
        accepted: Option<SinkAnswer>,
    ) {
        match accepted {
            Some(SinkAnswer::Stored) => self.publish_follow_ups(task, after, reply),
            Some(SinkAnswer::Conflict(detail)) => {
                self.dead_letter_after_attempt(task, DeadReason::Conflict, detail);
            }
            Some(SinkAnswer::Refused(detail)) => {
                self.dead_letter_after_attempt(task, DeadReason::Rejected, detail);
            }
            None => Self::hand_back(task),
        }
    }

    /// Publishes the follow-ups of a stored result, and a dead letter of what the handler refused, then acks the task and
    /// replies.
    ///
    /// Follow-ups come after the sinks, because a result that is refused must not start anything. They come
    /// before the ack, because they would be lost if the worker crashed in between.
    fn publish_follow_ups(self: &Arc<Self>, task: InFlight, after: After, reply: Option<FinishedTask>) {
        if after.is_nothing() {
            return self.ack_and_reply(task, reply);
        }
        let this = Arc::clone(self);
        self.in_background("follow-ups", async move {
            let (now, trace) = (clock::now(), task.span.context(&task.envelope));
            let publisher = this.task_publisher();
            let follow_ups = after.follow_ups.into_iter().map(|it| NewTask { trace: trace.clone(), ..it });
            // A kind that no lane takes was refused when the handler requested it.
            let (mut messages, spans): (Vec<_>, Vec<_>) =
                follow_ups.filter_map(|it| publisher.message(it, now)).unzip();
            messages.extend(after.refused.as_ref().map(|part| this.letter_of_part(&task, part)));
            // If the channel dies first, the broker redelivers the parent, and the follow-ups are published
            // again under the same ids.
            let published = this.publish_until_confirmed(&task.delivery, messages).await;
            drop(spans);
            match published {
                Published::All => {
                    after.refused.iter().for_each(|part| this.count_refused_part(&task, part));
                    this.ack_and_reply(task, reply);
                }
                Published::GivenUp => {}
                Published::Closed => this.defer(task, PUT_OFF),
                Published::Never(error) => {
                    let error = format!("a follow-up cannot be published: {error}");
                    this.dead_letter_after_attempt(task, DeadReason::Rejected, error);
                }
            }
        });
    }

    /// Publishes follow-ups, and tasks of the sinks' background work.
    pub(crate) fn task_publisher(&self) -> TaskPublisher {
        TaskPublisher {
            names: self.names.clone(),
            routes: Arc::clone(&self.routes),
            publisher: self.publisher.clone(),
            missing: Arc::clone(&self.missing),
            traces: self.traces.clone(),
        }
    }

    fn ack_and_reply(self: &Arc<Self>, task: InFlight, reply: Option<FinishedTask>) {
        self.ack(task);
        if let Some(finished) = reply {
            self.reply(finished);
        }
    }

    /// Acks a task that succeeded.
    ///
    /// If the ack may not reach the broker, the task's id is remembered, so that its redelivery is acked without
    /// another run. That is the case if the channel died, and also if the task was redelivered before: the
    /// broker's consumer timeout takes deliveries away while their channel stays open.
    fn ack(&self, task: InFlight) {
        let InFlight { delivery, envelope, span, .. } = task;
        span.end(Settlement::Acked, None);
        if (!delivery.alive() || delivery.head.redelivered) && envelope.id_given {
            self.redeliveries.mark_succeeded(&envelope.id);
        }
        delivery.settle(Settlement::Acked);
    }

    /// Sends the result to the task's `reply_to`. Best effort, after the ack.
    fn reply(self: &Arc<Self>, finished: FinishedTask) {
        let (Some(replies), Some(queue)) = (&self.replies, finished.envelope.reply_to.clone()) else {
            return;
        };
        let (this, publisher) = (Arc::clone(self), replies.publisher.clone());
        self.in_background("reply", async move {
            let publishing = publisher.publish(results::message(&finished, Target::queue(queue)));
            let published = tokio::select! {
                biased;
                published = publishing => published,
                () = after_last_answers(&this.force_close) => return,
            };
            match published {
                // The queue of a client that stopped waiting is gone. The publisher counts it as returned.
                Ok(()) | Err(PublishError::Unroutable { .. }) => {}
                Err(error) => {
                    let (id, trace_id) = (&finished.envelope.id, finished.envelope.trace_id());
                    tracing::warn!(task = %id, trace_id, %error, "failed to publish reply");
                }
            }
        });
    }

    /// Runs a step of a settlement in the background, on the runtime of the broker connections.
    pub(crate) fn in_background(&self, name: &'static str, step: impl Future<Output = ()> + Send + 'static) {
        supervise::isolated(name, step).spawn_in_on(&self.tracker, &self.runtime).detach();
    }

    /// Returns a task to its queue without spending an attempt.
    fn hand_back(task: InFlight) {
        task.span.end(Settlement::Requeued, None);
        drop(task);
    }
}
