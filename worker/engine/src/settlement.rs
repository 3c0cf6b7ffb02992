//! Settlement: what a task's life needs of the broker and the sinks once it is decided what becomes of the task.
//!
//! `pipeline::life` shows the order of the steps. A step that takes the task ends it: it acks the delivery after the copy or
//! the result is stored. If it fails, the original stays unacked and the broker redelivers it.
//!
//! Functions that publish return boxed futures, so that a task with nothing to publish carries no room for it.

use std::{
    collections::BTreeMap,
    future::IntoFuture,
    sync::Arc,
    task::{Context, Waker},
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, future::BoxFuture};
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
    consumer::MissingQueues,
    force_close::after_last_answers,
    handler::{Output, RefusedPart, Routes, WhenDead},
    in_flight::InFlight,
    redelivery::RedeliveryTracker,
    reply_queues::{REPLY_TO, ReplyQueues},
    sink::{FinishedTask, SinkAnswer, SinkAnswers, SinkBuffer, results},
    task_publisher::TaskPublisher,
    unhandled_kinds::UnhandledKinds,
};

mod copies;
mod destinations;
mod orphans;
mod records;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use copies::{PUT_OFF, Published};
pub(crate) use records::record_places;

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
    /// Waits until no result, copy, follow-up or reply is pending.
    pub(crate) async fn idle(&self) {
        self.tracker.close();
        self.tracker.wait().await;
        self.report_dead_letters();
    }

    /// Offers the result to all sinks. Returns their common answer, which is awaited, and the result again if it is sent as a
    /// reply.
    pub(crate) fn store(
        &self,
        task: &InFlight,
        output: Output,
        started_at: SystemTime,
        took: Duration,
    ) -> (impl Future<Output = Option<SinkAnswer>> + use<>, Option<Box<FinishedTask>>) {
        let is_answered = self.is_answered(&task.envelope);
        if self.sink_buffer.is_empty() && !is_answered {
            return (SinkAnswers::default().common(), None);
        }
        let (envelope, worker) = (Arc::clone(&task.envelope), Arc::clone(&self.worker));
        let trace = task.span.context(&envelope);
        let finished = FinishedTask { envelope, worker, started_at, took, output, trace };
        let reply = is_answered.then(|| Box::new(finished.clone()));
        (self.sink_buffer.offer(task, finished).common(), reply)
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

    /// Publishes the follow-ups of a stored result, and a dead letter of what the handler refused.
    pub(crate) async fn publish_follow_ups(
        &self,
        task: &InFlight,
        follow_ups: Vec<NewTask>,
        refused: Option<RefusedPart>,
    ) -> Published {
        let (now, trace) = (clock::now(), task.span.context(&task.envelope));
        let publisher = self.task_publisher();
        let follow_ups = follow_ups.into_iter().map(|it| NewTask { trace: trace.clone(), ..it });
        // A kind that no lane takes was refused when the handler requested it.
        let (mut messages, spans): (Vec<_>, Vec<_>) =
            follow_ups.filter_map(|it| publisher.message(it, now)).unzip();
        messages.extend(refused.as_ref().map(|part| self.letter_of_part(task, part)));
        // If the channel dies first, the broker redelivers the parent, and the follow-ups are published again under the
        // same ids.
        let published = self.publish_until_confirmed(&task.delivery, messages).await;
        drop(spans);
        if matches!(published, Published::All) {
            refused.iter().for_each(|part| self.count_refused_part(task, part));
        }
        published
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

    /// Acks a task that succeeded.
    ///
    /// If the ack may not reach the broker, the task's id is remembered, so that its redelivery is acked without
    /// another run. That is the case if the channel died, and also if the task was redelivered before: the
    /// broker's consumer timeout takes deliveries away while their channel stays open.
    pub(crate) fn ack(&self, task: InFlight) {
        let InFlight { delivery, envelope, span, .. } = task;
        span.end(Settlement::Acked, None);
        if (!delivery.alive() || delivery.head.redelivered) && envelope.id_given {
            self.redeliveries.mark_succeeded(&envelope.id);
        }
        delivery.settle(Settlement::Acked);
    }

    /// Sends the result to the task's `reply_to`. Best effort, after the ack.
    pub(crate) fn reply(&self, finished: Box<FinishedTask>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let (Some(replies), Some(queue)) = (&self.replies, finished.envelope.reply_to.clone()) else {
                return;
            };
            let publishing = replies.publisher.publish(results::message(&finished, Target::queue(queue)));
            let published = tokio::select! {
                biased;
                published = publishing => published,
                () = after_last_answers(&self.force_close) => return,
            };
            match published {
                // The queue of a client that stopped waiting is gone. The publisher counts it as returned.
                Ok(()) | Err(PublishError::Unroutable { .. }) => {}
                Err(error) => {
                    let (id, trace_id) = (&finished.envelope.id, finished.envelope.trace_id());
                    tracing::warn!(task = %id, trace_id, %error, "failed to publish reply");
                }
            }
        })
    }

    /// Begins a settlement in place, so that results reach the sinks in the order in which their tasks end, and continues it on
    /// the runtime of the broker connections if it is pending.
    pub(crate) fn begin(&self, settlement: impl Future<Output = ()> + Send + 'static) {
        let mut settlement = Box::pin(supervise::isolated("settlement", settlement).into_future());
        // Timers and sockets belong to the runtime that is entered when they are made.
        let _entered = self.runtime.enter();
        if settlement.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.in_background("settlement", settlement.map(drop));
        }
    }

    /// Runs a step of a settlement in the background, on the runtime of the broker connections.
    pub(crate) fn in_background(&self, name: &'static str, step: impl Future<Output = ()> + Send + 'static) {
        supervise::isolated(name, step).spawn_in_on(&self.tracker, &self.runtime).detach();
    }
}
