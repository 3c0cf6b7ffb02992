//! Consumes one queue for as long as the worker wants it, across channels and connections.

use std::{
    collections::VecDeque,
    future::{Future, ready},
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream::TryReadyChunksError};
use garenne_amqp::{
    BrokerError,
    reply::{ACCESS_REFUSED, NOT_FOUND},
};
use garenne_common::{
    backoff::Backoff,
    supervise::{self, caught, count_panic},
    telemetry::Metrics,
};
use thiserror::Error;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::task::TaskTracker;

use super::{
    ack_writer::{self, AckWriter},
    admission_backoff::AdmissionBackoff,
    broker::{ConsumeBroker, ConsumeChannel, QueueState},
    cancellation::Cancellation,
    channel_generation::{ChannelGeneration, SettlementCounters},
    coalescer::DeliveryCoalescer,
    delivery::Delivery,
    intake::{Intake, LaneIntake},
    orphan::OnOrphan,
    subscription::Subscription,
    watchdog::Watchdog,
};

/// Largest number of deliveries that are passed on together. Each wake-up of the pool costs as much as several
/// tasks, so all deliveries that are ready share one.
const MAX_CHUNK: usize = 64;

/// How often a quiet subscriber checks whether its channel is open.
const CHANNEL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Why consuming on a channel has failed.
#[derive(Debug, Error)]
enum ConsumeError {
    /// The broker ended the consumer.
    #[error("the broker cancelled the consumer (was the queue deleted?)")]
    Cancelled,
    #[error("{0}")]
    Failed(String),
}

impl<T: Into<String>> From<T> for ConsumeError {
    fn from(problem: T) -> Self {
        Self::Failed(problem.into())
    }
}

/// What is logged when messages are orphans.
const QUEUE_DELETED: &str = "a queue was deleted; messages that it had delivered and that do not run to their end here are \
                             kept until it exists again, then published to it; a stop copies them to the dead letters";

/// The broker's reply text for an error of its own.
const INTERNAL_ERROR: &str = "INTERNAL_ERROR";
/// Its meaning for foreign messages.
const UNDELIVERABLE: &str = "the queue may have a message with a routing key of more than 255 bytes, which RabbitMQ cannot \
                             deliver: take it with the management API";

/// The error of a channel whose ack writer has ended.
const NO_SETTLEMENTS: &str = "the channel can send no more settlements";

type Consumer<B> = <<B as ConsumeBroker>::Channel as ConsumeChannel>::Deliveries;

/// Consumes one queue until the intake is closed and every delivery is settled.
pub(crate) struct Subscriber<B, F> {
    pub(crate) broker: B,
    /// Whether the queue has foreign messages.
    pub(crate) is_foreign: bool,
    pub(crate) metrics: Metrics,
    pub(crate) subscription: Subscription,
    pub(crate) counters: SettlementCounters,
    pub(crate) intake: LaneIntake,
    /// Why the queue is not being consumed; `None` while it is.
    pub(crate) problem: watch::Sender<Option<String>>,
    /// Reports that the broker denied the first attempt to consume.
    ///
    /// A permission that was missing from the start does not appear by waiting. One that was revoked later may be
    /// granted again, so this is `None` after the first success.
    pub(crate) denied: Option<mpsc::Sender<BrokerError>>,
    /// Accepts deliveries in order. The subscriber takes no more until it completes, and the prefetch bounds what
    /// waits meanwhile. Returns the panic message if a delivery caused a panic.
    pub(crate) accept: F,
    /// The ack writers of the subscriber's channels.
    pub(crate) ack_writers: TaskTracker,
    /// Takes the messages that are not settled when their queue is deleted.
    pub(crate) on_orphan: OnOrphan,
    /// The last cancel by the broker, while messages are held whose queue may have been deleted.
    pub(crate) cancellation: Weak<Cancellation>,
    /// Whether the topology is declared again after the queue was found: a queue of others may not have existed before, and was
    /// not bound then.
    pub(crate) must_bind: bool,
}

impl<B: ConsumeBroker, F: AsyncFn(Vec<Delivery>) -> Result<(), String>> Subscriber<B, F> {
    /// Consumes the queue. After a panic it may be called again and opens a new channel.
    pub(crate) async fn run(&mut self) {
        let mut backoff = Backoff::reconnect();
        while self.intake.current() != Intake::Closed {
            let consumed = match self.broker.open(self.subscription.prefetch).await {
                Ok(channel) => self.run_channel(channel, &mut backoff).await,
                Err(error) => Err(error.to_string()),
            };
            let Err(mut problem) = consumed else { return };
            if self.is_foreign && problem.contains(INTERNAL_ERROR) {
                problem = format!("{problem}; {UNDELIVERABLE}");
            }
            let wait = backoff.next_wait();
            let queue = &self.subscription.queue;
            // One problem is logged once, and not for each attempt.
            match self.problem.borrow().as_ref() == Some(&problem) {
                false => tracing::warn!(queue, problem, ?wait, "cannot consume, retrying"),
                true => tracing::debug!(queue, problem, ?wait, "still cannot consume"),
            }
            self.problem.send_replace(Some(problem));
            tokio::select! {
                biased;
                () = tokio::time::sleep(wait) => {}
                () = self.intake.wait_for(|intake| intake == Intake::Closed) => {}
            }
        }
    }

    /// Keeps the messages that are not settled. Their queue was deleted, or may have been.
    fn keep_orphans(&mut self, generation: &ChannelGeneration) -> Arc<Cancellation> {
        let cancellation = generation.queue_may_be_deleted(&self.on_orphan);
        self.cancellation = Arc::downgrade(&cancellation);
        cancellation
    }

    /// Keeps the messages that are not settled after the broker cancelled their consumer.
    async fn consumer_cancelled(&mut self, generation: &ChannelGeneration) {
        let (cancellation, count) = (self.keep_orphans(generation), generation.outstanding());
        let (version, queue) = (self.broker.version().await, &self.subscription.queue);
        if version.is_ok_and(|version| !version.cancels_late_consumers()) {
            cancellation.queue_deleted();
            tracing::error!(queue, count, "{QUEUE_DELETED}");
        } else {
            let what = "a consumer was cancelled: its queue was deleted or its consumer timeout passed; messages that it \
                        had received and that do not run to their end here are kept until this is known";
            tracing::warn!(queue, count, "{what}");
        }
    }

    /// Keeps the messages that are not settled after the queue was found missing.
    fn queue_missing(&mut self, generation: &ChannelGeneration) {
        let (count, earlier) = (generation.outstanding(), self.cancellation.upgrade());
        let was_in_doubt = earlier.is_some_and(|cancellation| cancellation.queue_deleted());
        if count > 0 {
            self.keep_orphans(generation).queue_deleted();
        }
        if was_in_doubt || count > 0 {
            tracing::error!(queue = self.subscription.queue, "{QUEUE_DELETED}");
        }
    }

    /// Consumes on one channel until the intake is closed, every delivery is settled, and the channel is closed. Fails
    /// if the channel or its connection does. Its ack writer has ended then.
    async fn run_channel(&mut self, channel: B::Channel, backoff: &mut Backoff) -> Result<(), String> {
        let flush_at = ack_writer::flush_at(&self.subscription);
        let generation = Arc::new(ChannelGeneration::new(self.counters.clone(), flush_at));
        let (intake, (drain, draining)) = (self.intake.clone(), watch::channel(false));
        let ack_writer =
            AckWriter::new(channel.clone(), Arc::clone(&generation), &self.subscription, intake, draining);
        // If this future is dropped or panics, the ack writer is aborted.
        let ack_writer = supervise::isolated("settlements", ack_writer.run()).spawn_in(&self.ack_writers);

        let consumed = self.consume_until_closed(&channel, &generation).await;
        if let Err(problem) = &consumed {
            // Those that are held, or were handed back since the cancel.
            let has_orphans = generation.outstanding() > 0 || generation.on_orphan().is_some();
            if matches!(problem, ConsumeError::Cancelled) && has_orphans {
                self.consumer_cancelled(&generation).await;
            }
            generation.end();
        }
        drain.send_replace(true);
        let settled = ack_writer.await;
        // The backoff is reset only by a settlement: a channel that consumes but fails before it settles anything
        // would otherwise be retried without a pause.
        if generation.has_sent_settlement() {
            backoff.reset();
        }
        let mut unconfirmed = settled.map_err(|failure| format!("the ack writer failed: {failure}"))?;
        if consumed.is_ok() {
            channel.close().await.map_err(|error| error.to_string())?;
            unconfirmed.confirm_all();
        } else if self.intake.current() != Intake::Closed {
            // While the worker runs, settlements sent before a connection was lost keep their count: whether the
            // broker processed the last of them is unknown. At a shutdown they are counted as lost.
            unconfirmed.confirm_all();
        }
        consumed.map_err(|error| error.to_string())
    }

    /// Follows the intake on one channel until the intake is closed.
    async fn consume_until_closed(
        &mut self,
        channel: &B::Channel,
        generation: &Arc<ChannelGeneration>,
    ) -> Result<(), ConsumeError> {
        loop {
            match self.intake.current() {
                Intake::Closed => return Ok(()),
                Intake::Quiet => {
                    self.problem.send_replace(None);
                    self.wait_while_quiet(channel, generation).await?;
                }
                Intake::Open => {
                    let consumer = self.start_consumer(channel, generation).await?;
                    if let Some(cancellation) = self.cancellation.upgrade() {
                        cancellation.consumed_again();
                    }
                    self.problem.send_replace(None);
                    self.denied = None;
                    generation.consumer_started(self.subscription.prefetch);
                    self.consume(channel, consumer, generation).await?;
                }
            }
        }
    }

    /// Starts a consumer. It declares a missing queue for the next attempt and reports a missing permission.
    async fn start_consumer(
        &mut self,
        channel: &B::Channel,
        generation: &ChannelGeneration,
    ) -> Result<Consumer<B>, String> {
        let Subscription { queue, tag, .. } = &self.subscription;
        let error = match channel.consume(queue, tag).await {
            Ok(consumer) => {
                if std::mem::take(&mut self.must_bind) {
                    // A queue that does not exist cannot be bound.
                    let _ = self.broker.restore_topology().await;
                }
                return Ok(consumer);
            }
            Err(error) => error,
        };
        match &error.reply {
            Some((NOT_FOUND, _)) if self.subscription.is_of_others => {
                self.queue_missing(generation);
                self.must_bind = true;
            }
            Some((NOT_FOUND, _)) => {
                self.queue_missing(generation);
                let restored = self.broker.restore_topology().await;
                let _ = restored.inspect(|()| tracing::warn!("a queue was missing and is declared again"));
            }
            Some((ACCESS_REFUSED, detail)) => {
                if let Some(denied) = self.denied.take() {
                    // The channel is full if another lane has reported already.
                    let _ = denied.try_send(self.broker.denied(detail));
                }
            }
            _ => {}
        }
        Err(error.text)
    }

    /// Takes deliveries until the intake changes, then cancels the consumer and takes those already on their way.
    async fn consume(
        &mut self,
        channel: &B::Channel,
        consumer: Consumer<B>,
        generation: &Arc<ChannelGeneration>,
    ) -> Result<(), ConsumeError> {
        let Self { broker, metrics, subscription, intake, accept, problem, cancellation, on_orphan, .. } =
            self;
        let ready_messages = || ready_messages(broker, &subscription.queue);
        let mut watchdog = Watchdog::new(subscription.prefetch, Arc::clone(generation), ready_messages);
        let mut backoff = AdmissionBackoff::new();
        // Messages are converted one by one: a chunk of large deliveries would be moved once more.
        let unreadable = metrics.unreadable(&subscription.queue);
        let deliveries = consumer.map_ok(|message| {
            let delivery = Delivery::new(Arc::clone(generation), message);
            if delivery.head.redelivered
                && let Some(cancellation) = cancellation.upgrade()
            {
                cancellation.record(delivery.identity());
            }
            if delivery.head.unreadable.is_some() {
                unreadable.inc();
            }
            delivery
        });
        let mut chunks = deliveries.try_ready_chunks(MAX_CHUNK);
        let mut coalescer = DeliveryCoalescer::new(subscription.prefetch, subscription.clock);
        let mut cancelled = false;
        // What was received while deliveries were accepted. The prefetch bounds it.
        let mut ahead = VecDeque::new();
        loop {
            let reset_at = backoff.reset_at;
            let chunk = tokio::select! {
                biased;
                chunk = ready(ahead.pop_front()), if !ahead.is_empty() => chunk.flatten(),
                () = intake.wait_for(|intake| intake != Intake::Open), if !cancelled => {
                    cancelled = true;
                    channel.cancel(&subscription.tag).await.map_err(|error| error.to_string())?;
                    generation.consumer_stopped();
                    continue;
                }
                chunk = coalesced(&coalescer, chunks.next()) => chunk,
                () = sleep_until(watchdog.next_check()), if !cancelled => {
                    if watchdog.is_forgotten().await {
                        return Err("messages are ready, there is credit, but none is delivered".into());
                    }
                    continue;
                }
                () = generation.ended() => return Err(NO_SETTLEMENTS.into()),
                () = sleep_until(reset_at.unwrap_or_else(Instant::now)), if reset_at.is_some() => {
                    backoff.reset();
                    problem.send_replace(None);
                    continue;
                }
            };
            let (deliveries, error) = match chunk {
                Some(Ok(deliveries)) => (deliveries, None),
                Some(Err(TryReadyChunksError(deliveries, error))) => (deliveries, Some(error)),
                None if cancelled => return Ok(()),
                None => return Err(ConsumeError::Cancelled),
            };
            let more_ready = deliveries.len() == MAX_CHUNK;
            coalescer.record_received(deliveries.len(), more_ready, Instant::now());
            let mut accepting = pin!(caught(accept(deliveries)));
            let accepted = loop {
                let is_over = error.is_some() || matches!(ahead.back(), Some(None | Some(Err(_))));
                tokio::select! {
                    biased;
                    accepted = &mut accepting => break accepted.flatten(),
                    // A cancel must be known before anything is handed back: the connection may be lost meanwhile.
                    chunk = chunks.next(), if !is_over => {
                        if chunk.is_none() && !cancelled {
                            generation.queue_may_be_deleted(on_orphan);
                        }
                        ahead.push_back(chunk);
                    }
                }
            };
            if let Some(error) = error {
                return Err(error.to_string().into());
            }
            if let Err(panic) = accepted {
                count_panic("admission");
                let wait = backoff.record_panic(Instant::now());
                let queue = &subscription.queue;
                tracing::error!(queue, panic, ?wait, "panic while accepting a delivery, requeued it");
                problem.send_replace(Some(format!("panic while accepting a delivery: {panic}")));
                tokio::time::sleep(wait).await;
            }
        }
    }

    /// Waits until the intake is no longer quiet. Fails if the channel does meanwhile.
    async fn wait_while_quiet(
        &mut self,
        channel: &B::Channel,
        generation: &ChannelGeneration,
    ) -> Result<(), String> {
        let mut channel_check = tokio::time::interval(CHANNEL_CHECK_INTERVAL);
        loop {
            tokio::select! {
                biased;
                () = self.intake.wait_for(|intake| intake != Intake::Quiet) => return Ok(()),
                () = generation.ended() => return Err(NO_SETTLEMENTS.into()),
                _ = channel_check.tick() => if !channel.is_open() {
                    return Err("the channel closed while the worker was quiet".into());
                }
            }
        }
    }
}

/// The number of ready messages in a queue. `None` if the queue does not exist or the broker does not answer.
pub(crate) async fn ready_messages(broker: &impl ConsumeBroker, queue: &str) -> Option<u32> {
    match broker.look_up(queue).await? {
        QueueState::Ready(ready) => Some(ready),
        QueueState::Locked | QueueState::Missing => None,
    }
}

/// Completes with the next chunk, but not before the coalescer's tick.
async fn coalesced<C>(coalescer: &DeliveryCoalescer, next_chunk: impl Future<Output = C>) -> C {
    if let Some(time) = coalescer.wait_until() {
        sleep_until(time).await;
    }
    next_chunk.await
}

#[cfg(test)]
pub(super) mod tests;
