//! A foreign AMQP client that publishes messages and takes them from queues for inspection.
//!
//! It shares no code with the programs under test.

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{
        BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use serde_json::Value;

/// Maximum number of unconfirmed messages.
const IN_FLIGHT: usize = 500;

/// A connection with a channel in confirm mode.
#[derive(Debug)]
pub struct Client {
    // The channel works only while the connection exists.
    _connection: Connection,
    channel: Channel,
}

/// A message that was taken from a queue.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Its properties, including the headers.
    pub properties: BasicProperties,
    /// Its body.
    pub body: Vec<u8>,
    /// The exchange that it was published to.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// Whether the broker delivered it before.
    pub redelivered: bool,
}

impl Taken {
    /// Its id; empty if it has none.
    #[must_use]
    pub fn id(&self) -> &str {
        self.properties.message_id().as_ref().map_or("", |id| id.as_str())
    }

    /// Whether it has this header.
    #[must_use]
    pub fn has(&self, header: &str) -> bool {
        self.header(header).is_some()
    }

    /// A text header; empty if it is missing or not a text.
    #[must_use]
    pub fn text(&self, header: &str) -> String {
        match self.header(header) {
            Some(AMQPValue::LongString(text)) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
            Some(AMQPValue::ShortString(text)) => text.as_str().to_owned(),
            _ => String::new(),
        }
    }

    /// An integer header; none if it is missing or not an integer.
    #[must_use]
    pub fn number(&self, header: &str) -> Option<i64> {
        match self.header(header)? {
            AMQPValue::LongLongInt(number) => Some(*number),
            AMQPValue::LongInt(number) => Some((*number).into()),
            AMQPValue::LongUInt(number) => Some((*number).into()),
            _ => None,
        }
    }

    fn header(&self, name: &str) -> Option<&AMQPValue> {
        self.properties.headers().as_ref()?.inner().get(name)
    }
}

/// A header table of these pairs.
#[must_use]
pub fn headers<const N: usize>(pairs: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in pairs {
        table.insert(name.into(), value);
    }
    table
}

/// The value of a text header.
#[must_use]
pub fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// Properties of a persistent message with this id.
#[must_use]
pub fn with_id(id: &str) -> BasicProperties {
    BasicProperties::default().with_message_id(id.into()).with_delivery_mode(2)
}

impl Client {
    /// Connects and opens a channel.
    pub async fn connect(url: &str) -> Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { _connection: connection, channel })
    }

    /// The channel, for operations that this type does not have.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Publishes a message and waits for its confirm.
    pub async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        properties: BasicProperties,
        body: &[u8],
    ) -> Result<()> {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let sent = self.channel.basic_publish(exchange.into(), routing_key.into(), options, body, properties);
        match sent.await?.await? {
            Confirmation::Ack(None) => Ok(()),
            other => bail!("{routing_key} was not stored: {other:?}"),
        }
    }

    /// Publishes tasks of one kind with these ids to an exchange, several in flight at a time.
    pub async fn publish_all(
        &self,
        exchange: &str,
        kind: &str,
        payload: &Value,
        ids: impl IntoIterator<Item = String>,
    ) -> Result<()> {
        let body = payload.to_string();
        stream::iter(ids)
            .map(async |id| self.publish(exchange, kind, with_id(&id), body.as_bytes()).await)
            .buffered(IN_FLIGHT)
            .try_collect()
            .await
    }

    /// The number of ready messages in a queue, by a passive declare, which is exact.
    pub async fn ready(&self, queue: &str) -> Result<usize> {
        usize::try_from(self.passive_declare(queue).await?.message_count()).context("a count")
    }

    /// The number of consumers of a queue, by a passive declare, which is exact.
    pub async fn consumers(&self, queue: &str) -> Result<usize> {
        usize::try_from(self.passive_declare(queue).await?.consumer_count()).context("a count")
    }

    async fn passive_declare(&self, queue: &str) -> Result<lapin::Queue> {
        let options = QueueDeclareOptions { passive: true, durable: true, ..QueueDeclareOptions::default() };
        Ok(self.channel.queue_declare(queue.into(), options, FieldTable::default()).await?)
    }

    /// Takes a message from a queue, if one is ready.
    pub async fn take(&self, queue: &str) -> Result<Option<Taken>> {
        let Some(got) = self.channel.basic_get(queue.into(), BasicGetOptions::default()).await? else {
            return Ok(None);
        };
        let delivery = got.delivery;
        self.channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default()).await?;
        Ok(Some(Taken {
            properties: delivery.properties,
            body: delivery.data.to_vec(),
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
            redelivered: delivery.redelivered,
        }))
    }
}
