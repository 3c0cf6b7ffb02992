//! Requests: messages whose replies come back through RabbitMQ's direct reply queue.
//!
//! The broker requires that a channel consumes `amq.rabbitmq.reply-to` before it publishes with that `reply_to`, and
//! delivers the replies to this channel. So the publisher's own channel consumes them. They end with the channel: a
//! request that was written on it can have no reply afterwards.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use garenne_common::{lock::lock, supervise};
use lapin::{
    Channel,
    options::BasicConsumeOptions,
    types::{FieldTable, ShortString},
};
use tokio::{sync::oneshot, task::AbortHandle};

use super::{Publisher, PublisherConfig, error::PublishError, pending_publish::PendingPublish};
use crate::{connect::Broker, wire::Message};

/// The name under which a channel consumes its replies, and names them as `reply_to`.
const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to";

/// The requests of a publisher that wait for a reply, by correlation id.
#[derive(Default)]
pub(super) struct Requests {
    waiting: Mutex<HashMap<ShortString, Waiting>>,
    channels: AtomicU64,
}

struct Waiting {
    reply: oneshot::Sender<Bytes>,
    /// The number of the channel that the request is written on; [`None`] while it waits for one.
    channel: Option<u64>,
}

/// The reply of a request. Its output is [`None`] if the channel ended before the reply arrived.
#[must_use = "a reply is only received while this is awaited or held"]
pub struct PendingReply {
    requests: Arc<Requests>,
    correlation_id: ShortString,
    reply: oneshot::Receiver<Bytes>,
}

impl Publisher {
    /// As [`Publisher::new`], for messages that are [requests](Publisher::request). Its channel consumes their replies, the
    /// only case in which one connection publishes and consumes.
    pub fn requesting(broker: Broker, config: PublisherConfig) -> Self {
        Self::build(broker, config, None, Some(Arc::default()))
    }

    /// Publishes a message that asks for a reply under a correlation id, and waits for its confirm. Dropping the returned
    /// value ends the wait for the reply.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    ///
    /// # Panics
    /// If the publisher is not [`requesting`](Publisher::requesting).
    pub async fn request(
        &self,
        message: Message,
        correlation_id: &str,
    ) -> Result<PendingReply, PublishError> {
        let requests = self.requests.as_ref().expect("the publisher receives replies");
        let reply = requests.register(correlation_id.into());
        let properties = message.properties.with_reply_to(DIRECT_REPLY.into());
        let properties = properties.with_correlation_id(correlation_id.into());
        match self.publish(Message { properties, ..message }).await {
            // A reply that is already here says more than a missing confirm.
            Err(error) if !reply.has_arrived() => Err(error),
            _ => Ok(reply),
        }
    }
}

impl Requests {
    /// Registers a request, before it is sent.
    pub(super) fn register(self: &Arc<Self>, correlation_id: ShortString) -> PendingReply {
        let (sender, reply) = oneshot::channel();
        let waiting = Waiting { reply: sender, channel: None };
        lock(&self.waiting).insert(correlation_id.clone(), waiting);
        PendingReply { requests: Arc::clone(self), correlation_id, reply }
    }

    /// Begins to receive the replies of a channel that was just opened.
    pub(super) async fn consume(self: &Arc<Self>, channel: &Channel) -> lapin::Result<ReplyConsumer> {
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consuming = channel.basic_consume(DIRECT_REPLY.into(), "".into(), options, FieldTable::default());
        let mut replies = consuming.await?;
        let number = self.channels.fetch_add(1, Ordering::Relaxed);
        let requests = Arc::clone(self);
        let receiving = async move {
            while let Some(Ok(delivery)) = replies.next().await {
                if let Some(id) = delivery.properties.correlation_id() {
                    requests.answer(id, delivery.data.into());
                }
            }
            requests.channel_ended(number);
        };
        // Not restarted: the pool replaces the channel instead.
        let task = supervise::isolated("replies", receiving).spawn().detach();
        Ok(ReplyConsumer { requests: Arc::clone(self), number, task })
    }

    fn answer(&self, correlation_id: &ShortString, body: Bytes) {
        // Without an entry, the sender of the request has stopped waiting.
        if let Some(waiting) = lock(&self.waiting).remove(correlation_id) {
            let _ = waiting.reply.send(body);
        }
    }

    /// Dropping the sender ends the wait of each request that was written on the channel. Others will be written on the
    /// next one.
    fn channel_ended(&self, number: u64) {
        lock(&self.waiting).retain(|_, waiting| waiting.channel != Some(number));
    }
}

impl PendingReply {
    pub(super) fn has_arrived(&self) -> bool {
        !self.reply.is_empty()
    }
}

impl Future for PendingReply {
    type Output = Option<Bytes>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.reply.poll_unpin(cx).map(Result::ok)
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        lock(&self.requests.waiting).remove(&self.correlation_id);
    }
}

/// The consumer of a channel's replies.
pub(super) struct ReplyConsumer {
    requests: Arc<Requests>,
    number: u64,
    task: AbortHandle,
}

impl ReplyConsumer {
    /// Notes that these messages are about to be written on the channel.
    pub(super) fn note(&self, publishes: &[PendingPublish]) {
        let mut waiting = lock(&self.requests.waiting);
        for publish in publishes {
            let id = publish.properties.correlation_id().as_ref();
            if let Some(waiting) = id.and_then(|id| waiting.get_mut(id)) {
                waiting.channel = Some(self.number);
            }
        }
    }

    pub(super) fn is_running(&self) -> bool {
        !self.task.is_finished()
    }
}

impl Drop for ReplyConsumer {
    fn drop(&mut self) {
        self.task.abort();
        self.requests.channel_ended(self.number);
    }
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::wire::Target;

    fn consumer(requests: &Arc<Requests>, number: u64) -> ReplyConsumer {
        let task = supervise::isolated("test", std::future::pending::<()>()).spawn().detach();
        ReplyConsumer { requests: Arc::clone(requests), number, task }
    }

    /// A message that a writer is about to write.
    fn publish(id: &str) -> PendingPublish {
        let properties = BasicProperties::default().with_correlation_id(id.into());
        let message = Message { target: Target::queue("q".into()), properties, body: Bytes::new() };
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        PendingPublish::new(message, permit).unwrap().0
    }

    #[tokio::test]
    async fn a_request_ends_with_the_channel_that_it_is_written_on_and_with_no_other() {
        let requests = Arc::new(Requests::default());
        let [written, queued, answered] =
            ["written", "queued", "answered"].map(|id| requests.register(id.into()));
        let (first, second) = (consumer(&requests, 1), consumer(&requests, 2));
        first.note(&[publish("written"), publish("answered"), publish("unknown")]);
        requests.answer(&"answered".into(), "yes".into());
        requests.answer(&"unknown".into(), "no".into());
        assert!(answered.has_arrived() && !written.has_arrived());
        drop(first);
        assert_eq!((written.await, answered.await), (None, Some("yes".into())));
        second.note(&[publish("queued")]);
        requests.answer(&"queued".into(), "later".into());
        assert_eq!(queued.await, Some("later".into()));
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_leaves_nothing() {
        let requests = Arc::new(Requests::default());
        drop(requests.register("a".into()));
        assert!(lock(&requests.waiting).is_empty());
    }
}
