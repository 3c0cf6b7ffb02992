//! Settlement: what a task's life needs of the broker and the sinks once it is decided what becomes of the task.
//!
//! `pipeline::life` shows the order of the steps, with [`Settler::settle`] and [`Settler::finish`]. A step that takes the
//! task ends it: it acks the delivery after the copy or the result is stored. If it fails, the original stays unacked and
//! the broker redelivers it.
//!
//! Functions that publish return boxed futures, so that a task with nothing to publish carries no room for it.

use std::{
    collections::BTreeMap,
    future::IntoFuture,
    sync::Arc,
    task::{Context, Waker},
    time::{Duration, SystemTime},
};

use futures_util::FutureExt;
use garenne_amqp::{DeadLetters, Publisher};
use garenne_common::supervise;
use garenne_common::{
    clock,
    log_limit::LogLimit,
    telemetry::{Metrics, Traces},
};
use garenne_protocol::{
    settlement::Settlement,
    task::{DeadReason, NewTask},
    topology::{Ladder, Names},
};
use tokio::{runtime::Handle, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    consumer::MissingQueues,
    handler::{Checkpoints, Output, RefusedPart, Routes, WhenDead},
    in_flight::InFlight,
    redelivery::RedeliveryTracker,
    sink::{FinishedTask, SinkAnswer, SinkAnswers, SinkBuffer},
    task_publisher::TaskPublisher,
    unhandled_kinds::UnhandledKinds,
};

mod celery;
mod copies;
mod destinations;
mod reclaim;
mod records;
mod replies;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use copies::{PUT_OFF, Published};
pub(crate) use records::record_places;
pub(crate) use replies::Replies;

/// The most follow-ups of one task that wait for their confirms: half of those that a publisher waits for, so that other
/// tasks are settled meanwhile.
const WINDOW_MESSAGES: usize = 500;
/// The size of such follow-ups, in bytes, from which on no further one is published.
const WINDOW_BYTES: usize = 4 << 20;

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
    pub(crate) when_dead: BTreeMap<String, Option<WhenDead>>,
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
    /// What attempts have left for the next ones. Copies carry it.
    pub(crate) checkpoints: Arc<Checkpoints>,
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

    /// Publishes the follow-ups of a stored result, and a dead letter of what the handler refused.
    pub(crate) async fn publish_follow_ups(
        &self,
        task: &InFlight,
        follow_ups: Vec<NewTask>,
        refused: Option<RefusedPart>,
    ) -> Published {
        let (now, trace) = (clock::now(), task.span.context(&task.envelope));
        let publisher = self.task_publisher();
        let mut follow_ups =
            follow_ups.into_iter().map(|it| NewTask { trace: trace.clone(), ..it }).peekable();
        let mut letter = refused.as_ref().map(|part| self.letter_of_part(task, part));
        // A message takes more memory than its task, so there are never more than one window's.
        while follow_ups.peek().is_some() || letter.is_some() {
            let (mut messages, mut spans, mut bytes) = (Vec::new(), Vec::new(), 0);
            while messages.len() < WINDOW_MESSAGES && bytes < WINDOW_BYTES {
                let Some(follow_up) = follow_ups.next() else {
                    messages.extend(letter.take());
                    break;
                };
                bytes += follow_up.body.len();
                // A kind that no lane takes was refused when the handler requested it.
                let Some((message, span)) = publisher.message(follow_up, now) else { continue };
                messages.push(message);
                spans.push(span);
            }
            // If the channel dies first, the broker redelivers the parent, and the follow-ups are published again under the
            // same ids.
            let published = self.publish_until_confirmed(&task.delivery, messages).await;
            if !matches!(published, Published::All) {
                return published;
            }
        }
        refused.iter().for_each(|part| self.count_refused_part(task, part));
        Published::All
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
        if (!delivery.channel_is_open() || delivery.head.redelivered) && envelope.id_given {
            self.redeliveries.mark_succeeded(&envelope.id);
        }
        delivery.settle(Settlement::Acked);
    }

    /// Begins a settlement in place, so that results reach the sinks in the order in which their tasks end, and continues it on
    /// the runtime of the broker connections if it is pending.
    pub(crate) fn poll_then_spawn(&self, settlement: impl Future<Output = ()> + Send + 'static) {
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
