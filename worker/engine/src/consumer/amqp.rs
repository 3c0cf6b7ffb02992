//! RabbitMQ as the broker that a worker consumes from. The engine names lapin only here.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use futures_util::Stream;
use garenne_amqp::{
    Broker, BrokerError,
    declare::{TopologyError, ensure},
    reply,
};
use garenne_common::telemetry::{Metrics, metrics::Role};
use garenne_protocol::{
    amqp::{AMQPValue, FieldTable},
    task::header,
    topology::{BrokerVersion, Topology},
};
use lapin::{
    Channel, Connection, Consumer,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions,
        BasicQosOptions, QueueBindOptions, QueueDeclareOptions,
    },
};
use tokio::sync::Mutex;

use super::broker::{
    ChannelError, ConsumeBroker, ConsumeChannel, Disposition, Frame, QueueState, RawDelivery, RestoreError,
    SettleChannel,
};

/// The current connection, shared by the lanes. A lane that finds it closed replaces it.
#[derive(Clone)]
pub(crate) struct ConsumerConnection {
    broker: Broker,
    role: Role,
    current: Arc<Mutex<Option<Arc<Connection>>>>,
    metrics: Metrics,
    /// Declared on the broker by [`ensure`](Self::ensure), and again when a part of it is missing.
    topology: Arc<OnceLock<Topology>>,
}

/// An open channel, and the connection that closes when nothing holds it any more.
#[derive(Clone)]
pub(crate) struct AmqpChannel {
    channel: Channel,
    _connection: Arc<Connection>,
}

pub(crate) struct AmqpDeliveries(Consumer);

impl ConsumerConnection {
    pub(crate) fn new(broker: Broker, metrics: Metrics) -> Self {
        Self { broker, role: Role::Consume, current: Arc::default(), metrics, topology: Arc::default() }
    }

    /// Returns the current connection, or opens a new one if it is closed.
    async fn connection(&self) -> Result<Arc<Connection>, BrokerError> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| connection.status().connected()) {
            return Ok(Arc::clone(connection));
        }
        let up = self.metrics.connection().up(self.role);
        up.set(0);
        if current.take().is_some() {
            self.metrics.connection().reconnects(self.role).inc();
        }
        let connection = Arc::new(self.broker.connect(self.role).await?);
        up.set(1);
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }
}

impl ConsumeBroker for ConsumerConnection {
    type Channel = AmqpChannel;

    async fn version(&self) -> Result<BrokerVersion, BrokerError> {
        self.connection().await?;
        self.broker.version().await
    }

    async fn ensure(&self, topology: Topology) -> Result<(), TopologyError> {
        ensure(&*self.connection().await?, &topology).await?;
        // Later calls pass the same topology.
        let _ = self.topology.set(topology);
        Ok(())
    }

    async fn restore_topology(&self) -> Result<(), RestoreError> {
        let topology = self.topology.get().ok_or(RestoreError::Unavailable)?;
        let connection = self.connection().await.map_err(|_| RestoreError::Unavailable)?;
        ensure(&connection, topology).await.map_err(|error| {
            tracing::warn!(%error, "cannot declare a missing queue or exchange");
            match error {
                TopologyError::Broker(_) | TopologyError::Connect(_) => RestoreError::Unavailable,
                error => RestoreError::Refused(error.to_string()),
            }
        })
    }

    /// It uses a channel of its own, because a failed passive declaration closes the channel.
    async fn look_up(&self, queue: &str) -> Option<QueueState> {
        let AmqpChannel { channel, _connection } = self.open(1).await.ok()?;
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        match channel.queue_declare(queue.into(), options, FieldTable::default()).await {
            Ok(queue) => {
                let _ = channel.close(200, "checked".into()).await;
                Some(QueueState::Ready(queue.message_count()))
            }
            Err(error) => match reply::of(&error)? {
                (reply::RESOURCE_LOCKED, _) => Some(QueueState::Locked),
                (reply::NOT_FOUND, _) => Some(QueueState::Missing),
                _ => None,
            },
        }
    }

    async fn open(&self, prefetch: u16) -> Result<AmqpChannel, BrokerError> {
        let connection = self.connection().await?;
        let open = async {
            let channel = connection.create_channel().await?;
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            Ok::<_, lapin::Error>(channel)
        };
        let channel = open.await.map_err(|error| self.broker.explain(&error))?;
        Ok(AmqpChannel { channel, _connection: connection })
    }

    fn denied(&self, detail: &str) -> BrokerError {
        self.broker.denied(detail)
    }

    /// RabbitMQ closes the connection when it cannot write a delivery, such as one with a routing key of more than 255
    /// bytes, which MQTT clients can send. Then the lanes of tasks go on.
    fn for_foreign_messages(&self) -> Self {
        Self { role: Role::ConsumeForeign, current: Arc::default(), ..self.clone() }
    }

    async fn close(&self) {
        if let Some(connection) = self.current.lock().await.take() {
            // An error means that the connection is closed already.
            let _ = connection.close(200, "worker stopped".into()).await;
        }
    }
}

impl AmqpChannel {
    async fn start(
        &self,
        queue: &str,
        tag: &str,
        options: BasicConsumeOptions,
        arguments: FieldTable,
    ) -> Result<AmqpDeliveries, ChannelError> {
        Ok(AmqpDeliveries(self.channel.basic_consume(queue.into(), tag.into(), options, arguments).await?))
    }
}

impl ConsumeChannel for AmqpChannel {
    type Deliveries = AmqpDeliveries;

    async fn consume(&self, queue: &str, tag: &str) -> Result<AmqpDeliveries, ChannelError> {
        self.start(queue, tag, BasicConsumeOptions::default(), FieldTable::default()).await
    }

    async fn consume_control_queue(
        &self,
        queue: &str,
        exchange: &str,
        keys: &[&str],
    ) -> Result<AmqpDeliveries, ChannelError> {
        let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
        self.channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
        self.bind_control_queue(queue, exchange, keys).await?;
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        self.start(queue, "", options, FieldTable::default()).await
    }

    async fn bind_control_queue(
        &self,
        queue: &str,
        exchange: &str,
        keys: &[&str],
    ) -> Result<(), ChannelError> {
        for key in keys {
            let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
            self.channel.queue_bind(queue.into(), exchange.into(), (*key).into(), options, arguments).await?;
        }
        Ok(())
    }

    async fn consume_stream(&self, stream: &str, from: Option<i64>) -> Result<AmqpDeliveries, ChannelError> {
        let mut arguments = FieldTable::default();
        let offset = from.map_or_else(|| header::long("first"), AMQPValue::LongLongInt);
        arguments.insert("x-stream-offset".into(), offset);
        self.start(stream, "", BasicConsumeOptions::default(), arguments).await
    }

    async fn cancel(&self, tag: &str) -> Result<(), ChannelError> {
        Ok(self.channel.basic_cancel(tag.into(), BasicCancelOptions::default()).await?)
    }

    fn is_open(&self) -> bool {
        self.channel.status().connected()
    }

    async fn close(&self) -> Result<(), ChannelError> {
        Ok(self.channel.close(200, "drained".into()).await?)
    }
}

impl SettleChannel for AmqpChannel {
    async fn send(&self, frame: &Frame) -> Result<(), ChannelError> {
        let Frame { disposition, tag, multiple, .. } = *frame;
        let sent = match disposition {
            Disposition::Ack => self.channel.basic_ack(tag, BasicAckOptions { multiple }).await,
            Disposition::Requeue => {
                self.channel.basic_nack(tag, BasicNackOptions { multiple, requeue: true }).await
            }
        };
        sent.map_err(ChannelError::from)
    }

    /// Only consume, cancel and get wait until the queue has applied all settlements before them. This sends a
    /// get and requeues the message that it may return.
    async fn flush_stash(&self, queue: &str) -> Result<(), ChannelError> {
        if let Some(message) = self.channel.basic_get(queue.into(), BasicGetOptions::default()).await? {
            let requeue = BasicNackOptions { multiple: false, requeue: true };
            self.channel.basic_nack(message.delivery.delivery_tag, requeue).await?;
        }
        Ok(())
    }
}

impl Stream for AmqpDeliveries {
    type Item = Result<RawDelivery, ChannelError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.0).poll_next(cx);
        next.map(|next| next.map(|message| Ok(message?.into())))
    }
}

impl From<lapin::message::Delivery> for RawDelivery {
    fn from(message: lapin::message::Delivery) -> Self {
        Self {
            tag: message.delivery_tag,
            exchange: message.exchange,
            routing_key: message.routing_key,
            redelivered: message.redelivered,
            properties: message.properties,
            body: message.data,
        }
    }
}

impl From<lapin::Error> for ChannelError {
    fn from(error: lapin::Error) -> Self {
        let reply = reply::of(&error).map(|(code, text)| (code, text.to_owned()));
        Self { reply, text: error.to_string() }
    }
}
