//! What a worker consumes from.

use std::{
    collections::HashMap,
    future::pending,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::Stream;
use garenne::simulation::{
    ChannelError, ConsumeBroker, ConsumeChannel, Disposition, Frame, QueueState, RestoreError, SettleChannel,
};
use garenne_amqp::{BrokerError, declare::TopologyError};
use garenne_protocol::topology::{BrokerVersion, Topology};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use super::{Client, Delivered, State};
use crate::{
    broker::Life,
    connection::ConnectError,
    event::{Answer, CloseReason},
    frame::{ConsumeOptions, StreamOffset},
    id::{ChannelId, ConnectionId, ConsumerId, RequestId},
};

/// How long opening a connection takes.
const CONNECTING: Duration = Duration::from_millis(2);
/// How long a client waits for a broker that does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A worker's connection for consuming, opened again when it ended.
#[derive(Clone)]
pub(crate) struct ConsumeLink {
    client: Client,
    current: Arc<tokio::sync::Mutex<Option<ConnectionId>>>,
    /// What the worker declares again if a queue is missing.
    topology: Arc<Mutex<Option<Topology>>>,
}

/// A channel. It is closed when its last clone is dropped.
#[derive(Clone)]
pub(crate) struct Channel(Arc<OpenChannel>);

struct OpenChannel {
    client: Client,
    id: ChannelId,
    consumers: Mutex<HashMap<String, ConsumerId>>,
}

/// The deliveries of a consumer.
pub(crate) struct Deliveries(mpsc::UnboundedReceiver<Delivered>);

pub(super) fn unavailable(detail: &str) -> BrokerError {
    BrokerError::Unavailable { address: "simulated:5672".to_owned(), detail: detail.to_owned() }
}

impl Client {
    /// Opens a connection.
    pub(super) async fn connect(&self) -> Result<ConnectionId, BrokerError> {
        sleep(CONNECTING).await;
        let began = self.net.now();
        loop {
            let Some(connected) = self.send(|state| state.broker.connect(self.owner)) else {
                return pending().await;
            };
            match connected {
                Ok(connection) => return Ok(connection),
                Err(ConnectError::Refused) => return Err(unavailable("connection refused")),
                Err(ConnectError::NoAnswer) if self.net.now() - began < CONNECT_TIMEOUT => {
                    sleep(CONNECTING * 10).await;
                }
                Err(ConnectError::NoAnswer) => return Err(unavailable("no answer")),
            }
        }
    }
}

impl ConsumeLink {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, current: Arc::default(), topology: Arc::default() }
    }

    async fn connection(&self) -> Result<ConnectionId, BrokerError> {
        let mut current = self.current.lock().await;
        if let Some(open) = *current
            && self.client.with(|state| state.knows_as_open(open)).unwrap_or(false)
        {
            return Ok(open);
        }
        *current = None;
        let connection = self.client.connect().await?;
        *current = Some(connection);
        Ok(connection)
    }
}

impl ConsumeBroker for ConsumeLink {
    type Channel = Channel;

    async fn version(&self) -> Result<BrokerVersion, BrokerError> {
        self.connection().await?;
        Ok(self.client.net.with(|state| state.broker.version()))
    }

    /// The broker was prepared with the topology of these workers. A queue may have been deleted since.
    async fn ensure(&self, topology: Topology) -> Result<(), TopologyError> {
        *self.topology.lock().unwrap_or_else(PoisonError::into_inner) = Some(topology);
        // A broker that does not answer is noticed by what follows.
        let _ = self.restore_topology().await;
        Ok(())
    }

    async fn restore_topology(&self) -> Result<(), RestoreError> {
        self.connection().await.map_err(|_| RestoreError::Unavailable)?;
        let topology = self.topology.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let declared = self.client.send(|state| {
            let is_running = state.broker.life == Life::Running;
            if let Some(topology) = topology.filter(|_| is_running) {
                state.broker.restore(&topology);
            }
            is_running
        });
        match declared {
            None => pending().await,
            Some(true) => Ok(()),
            Some(false) => Err(RestoreError::Unavailable),
        }
    }

    async fn look_up(&self, queue: &str) -> Option<QueueState> {
        let channel = self.open(1).await.ok()?;
        match channel.request(|state, id| state.broker.look_up(id, queue)).await {
            Ok(Answer::Exists { ready, .. }) => Some(QueueState::Ready(ready)),
            Ok(_) => None,
            Err(error) => match error.reply {
                Some((405, _)) => Some(QueueState::Locked),
                Some((404, _)) => Some(QueueState::Missing),
                _ => None,
            },
        }
    }

    async fn open(&self, prefetch: u16) -> Result<Channel, BrokerError> {
        let connection = self.connection().await?;
        let opened = self.client.send(|state| {
            let id = state.broker.open_channel(connection, prefetch)?;
            state.channels.insert(id, (connection, None));
            Some(id)
        });
        match opened {
            None => pending().await,
            Some(None) => Err(unavailable("the connection has ended")),
            Some(Some(id)) => {
                let client = self.client.clone();
                Ok(Channel(Arc::new(OpenChannel { client, id, consumers: Mutex::default() })))
            }
        }
    }

    fn denied(&self, detail: &str) -> BrokerError {
        unavailable(detail)
    }

    fn for_foreign_messages(&self) -> Self {
        Self { topology: Arc::clone(&self.topology), ..Self::new(self.client.clone()) }
    }

    async fn close(&self) {
        if let Some(connection) = self.current.lock().await.take() {
            self.client.send(|state| state.broker.close_connection(connection));
        }
    }
}

impl OpenChannel {
    /// Sends a frame, unless the client knows that the channel has ended.
    fn send<R>(&self, act: impl FnOnce(&mut State, ChannelId) -> R) -> Option<Result<R, ChannelError>> {
        self.client.send(|state| match state.end_of(self.id) {
            Some(error) => Err(error),
            None => Ok(act(state, self.id)),
        })
    }
}

impl Channel {
    /// Sends a request and waits for its answer.
    async fn request(
        &self,
        act: impl FnOnce(&mut State, ChannelId) -> RequestId,
    ) -> Result<Answer, ChannelError> {
        let (sender, answer) = oneshot::channel();
        let sent = self.0.send(|state, id| {
            let request = act(state, id);
            state.answers.insert(request, (id, sender));
        });
        match sent {
            None => pending().await,
            Some(sent) => sent?,
        }
        answer.await.unwrap_or_else(|_| Err(super::error_of(&CloseReason::new(0, "the channel ended"))))
    }

    async fn start(
        &self,
        queue: &str,
        tag: &str,
        options: ConsumeOptions,
    ) -> Result<Deliveries, ChannelError> {
        let (sender, deliveries) = mpsc::unbounded_channel();
        let answer = self.request(|state, id| {
            let (consumer, request) = state.broker.consume(id, queue, options);
            state.consumers.insert(consumer, (id, sender));
            self.consumers().insert(tag.to_owned(), consumer);
            request
        });
        answer.await.map(|_| Deliveries(deliveries))
    }

    fn consumers(&self) -> std::sync::MutexGuard<'_, HashMap<String, ConsumerId>> {
        self.0.consumers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConsumeChannel for Channel {
    type Deliveries = Deliveries;

    async fn consume(&self, queue: &str, tag: &str) -> Result<Deliveries, ChannelError> {
        self.start(queue, tag, ConsumeOptions::default()).await
    }

    async fn consume_control_queue(
        &self,
        queue: &str,
        exchange: &str,
        keys: &[&str],
    ) -> Result<Deliveries, ChannelError> {
        let bindings: Vec<_> = keys.iter().map(|key| (exchange, *key)).collect();
        self.request(|state, id| state.broker.declare_exclusive(id, queue, &bindings)).await?;
        self.start(queue, "", ConsumeOptions { no_ack: true, ..ConsumeOptions::default() }).await
    }

    /// No exchange is ever deleted, so the bindings exist.
    async fn bind_control_queue(&self, _: &str, _: &str, _: &[&str]) -> Result<(), ChannelError> {
        Ok(())
    }

    async fn consume_stream(&self, stream: &str, from: Option<i64>) -> Result<Deliveries, ChannelError> {
        let offset = from.map_or(StreamOffset::First, StreamOffset::At);
        self.start(stream, "", ConsumeOptions { offset, ..ConsumeOptions::default() }).await
    }

    async fn cancel(&self, tag: &str) -> Result<(), ChannelError> {
        let Some(consumer) = self.consumers().get(tag).copied() else { return Ok(()) };
        self.request(|state, id| state.broker.cancel(id, consumer)).await.map(drop)
    }

    fn is_open(&self) -> bool {
        self.0.client.with(|state| state.end_of(self.0.id).is_none()).unwrap_or(false)
    }

    async fn close(&self) -> Result<(), ChannelError> {
        self.request(|state, id| state.broker.close_channel(id)).await.map(drop)
    }
}

impl SettleChannel for Channel {
    async fn send(&self, frame: &Frame) -> Result<(), ChannelError> {
        let Frame { disposition, tag, multiple, .. } = *frame;
        let sent = self.0.send(|state, id| match disposition {
            Disposition::Ack => {
                state.acked(id, tag);
                state.broker.ack(id, tag, multiple);
            }
            Disposition::Requeue => {
                let owner = state.broker.owner_of(id);
                let first = if multiple { 0 } else { tag };
                for (_, unacked) in state.broker.channels[id.index()].unacked.range(first..=tag) {
                    if let Some((name, _)) = state.broker.ledger.name(unacked.serial) {
                        state.watch.handed_back(owner, name);
                    }
                }
                state.broker.nack(id, tag, multiple, true);
            }
        });
        match sent {
            None => pending().await,
            Some(sent) => sent,
        }
    }

    async fn flush_stash(&self, queue: &str) -> Result<(), ChannelError> {
        if let Answer::Got(Some(delivery)) = self.request(|state, id| state.broker.get(id, queue)).await? {
            let returned = self.0.send(|state, id| {
                state.watch.flushed(state.broker.owner_of(id));
                state.broker.nack(id, delivery.tag, false, true);
            });
            return returned.unwrap_or(Ok(()));
        }
        Ok(())
    }
}

impl Drop for OpenChannel {
    fn drop(&mut self) {
        self.client.with(|state| {
            if state.end_of(self.id).is_none() {
                state.broker.close_channel(self.id);
            }
            state.forget(self.id);
        });
    }
}

impl Stream for Deliveries {
    type Item = Delivered;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Delivered>> {
        self.0.poll_recv(cx)
    }
}
