//! What a process publishes to.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::{
    Message as Published, PublishError, Target,
    simulated::{Outgoing, PublishBroker},
};
use garenne_common::supervise::spawn_in_current;

use super::{Client, Unconfirmed, consume::unavailable};
use crate::{
    id::{ChannelId, ConnectionId},
    message::{Message, Publish},
};

/// A process's connection for publishing, opened again when it ended. Messages wait for it in order.
#[derive(Clone)]
pub(crate) struct PublishLink(Arc<Inner>);

struct Inner {
    client: Client,
    blocked: Arc<AtomicBool>,
    queue: Mutex<Queue>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Queue {
    current: Option<(ConnectionId, ChannelId)>,
    waiting: VecDeque<Outgoing>,
    is_writing: bool,
}

impl PublishLink {
    /// `blocked` is true while an alarm blocks the connection.
    pub(crate) fn new(client: Client, blocked: Arc<AtomicBool>) -> Self {
        Self(Arc::new(Inner { client, blocked, queue: Mutex::default(), connecting: Default::default() }))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel, if the client knows no end of it.
    fn open_channel(&self) -> Option<ChannelId> {
        let (_, channel) = self.queue().current?;
        self.0.client.with(|state| state.end_of(channel).is_none()).unwrap_or(false).then_some(channel)
    }

    async fn channel(&self) -> Result<ChannelId, PublishError> {
        let _connecting = self.0.connecting.lock().await;
        if let Some(open) = self.open_channel() {
            return Ok(open);
        }
        self.disconnect();
        let client = &self.0.client;
        let connection = client.connect().await.map_err(PublishError::Connect)?;
        let opened = client.send(|state| {
            let channel = state.broker.open_channel(connection, 0)?;
            state.channels.insert(channel, (connection, None));
            state.blocked.insert(connection, Arc::clone(&self.0.blocked));
            Some(channel)
        });
        let Some(channel) = opened.flatten() else {
            return Err(PublishError::Connect(unavailable("the connection has ended")));
        };
        self.queue().current = Some((connection, channel));
        Ok(channel)
    }

    /// Closes the connection of a channel that has ended.
    fn disconnect(&self) {
        let Some((connection, channel)) = self.queue().current.take() else { return };
        self.0.blocked.store(false, Ordering::Relaxed);
        self.0.client.with(|state| {
            state.blocked.remove(&connection);
            state.broker.close_connection(connection);
            state.forget(channel);
        });
    }

    /// Writes what waits, once there is a connection.
    async fn write_waiting(self) {
        loop {
            let opened = self.channel().await;
            let waiting = std::mem::take(&mut self.queue().waiting);
            for outgoing in waiting {
                match &opened {
                    Ok(channel) => self.write(*channel, outgoing),
                    Err(error) => outgoing.answer(Err(error.clone())),
                }
            }
            let mut queue = self.queue();
            if queue.waiting.is_empty() {
                queue.is_writing = false;
                return;
            }
        }
    }

    fn write(&self, channel: ChannelId, outgoing: Outgoing) {
        if !outgoing.claim() {
            return;
        }
        let message = outgoing.message();
        self.0.client.send(|state| {
            let (now, lost_queues) = (state.broker.now, state.broker.lost_queues);
            let owner = state.broker.owner_of(channel);
            state.watch.published(owner, &message, lost_queues, now);
            let sequence = state.broker.publish(channel, publish_of(message));
            state.confirms.insert((channel, sequence), Unconfirmed { outgoing, is_returned: false });
        });
    }
}

fn publish_of(message: Published) -> Publish {
    let Published { target: Target { exchange, routing_key, mandatory }, properties, body } = message;
    let (exchange, routing_key) = (exchange.into(), routing_key.into());
    Publish { message: Message { exchange, routing_key, properties, body }, mandatory }
}

impl PublishBroker for PublishLink {
    fn connect(&self) -> BoxFuture<'_, Result<(), PublishError>> {
        async { self.channel().await.map(drop) }.boxed()
    }

    fn publish(&self, outgoing: Outgoing) {
        let open = self.open_channel();
        let mut queue = self.queue();
        if let (Some(channel), true) = (open, queue.waiting.is_empty() && !queue.is_writing) {
            drop(queue);
            return self.write(channel, outgoing);
        }
        queue.waiting.push_back(outgoing);
        if !std::mem::replace(&mut queue.is_writing, true) {
            drop(queue);
            spawn_in_current(self.clone().write_waiting().boxed());
        }
    }

    fn announce(&self, message: Published) -> BoxFuture<'_, Result<(), PublishError>> {
        async {
            let channel = self.channel().await?;
            self.0.client.send(|state| state.broker.publish(channel, publish_of(message)));
            Ok(())
        }
        .boxed()
    }

    fn close(&self) {
        let Client { owner, .. } = self.0.client;
        // Nothing that the process has not said until now will be said.
        self.0.client.with(|state| state.watch.exited(owner));
        self.disconnect();
    }
}
