//! Inspects queues and exchanges by passive declare, which changes nothing. Since RabbitMQ 4.3.1 it needs any permission
//! on the object, before that none.

use garenne_common::exit::{Exit, Failure};
use lapin::{
    Channel, Connection, ErrorKind, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueDeclareOptions},
    types::FieldTable,
};
use serde::Serialize;

use super::figure_source::FigureSource;

/// Reply codes of the broker.
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;

/// One queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueStatus {
    /// Messages ready for delivery.
    pub ready: u64,
    /// Messages delivered and not settled; unknown to a passive declare.
    pub unacked: Option<u64>,
    /// Source and age of `unacked`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unacked_from: Option<FigureSource>,
    /// Ready and unacknowledged messages as the management API counted them together, so that a message is in one of
    /// both. Unknown without it.
    #[serde(skip)]
    pub counted: Option<u64>,
    /// Number of consumers.
    pub consumers: u64,
    /// Messages published to it since the broker counts; unknown without the management API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<u64>,
}

impl QueueStatus {
    /// The messages of a queue that only an operator or a walk takes from: what `ready` counts now or what the
    /// management API counted a few seconds ago, whichever is more. A sum of `ready` now and `unacked` then would count
    /// messages twice that were returned in between.
    pub fn held(&self) -> u64 {
        self.ready.max(self.counted.unwrap_or(0))
    }

    /// The sum of two queues, with the lower number of consumers.
    pub(super) fn combined(self, other: Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one? + other?);
        Self {
            ready: self.ready + other.ready,
            unacked: sum(self.unacked, other.unacked),
            // Both have the same source.
            unacked_from: self.unacked_from.and(other.unacked_from),
            counted: sum(self.counted, other.counted),
            consumers: self.consumers.min(other.consumers),
            published: sum(self.published, other.published),
        }
    }
}

/// The failure of an operation on a queue or exchange, by the broker's reply code.
pub fn failure(name: &str, error: &lapin::Error) -> Failure {
    let (exit, problem) = match error.kind() {
        ErrorKind::ProtocolError(reply) if reply.get_id() == NOT_FOUND => return missing(name),
        ErrorKind::ProtocolError(reply) if reply.get_id() == ACCESS_REFUSED => {
            (Exit::Denied, format!("the broker denied access to {name:?}: {}", reply.get_message()))
        }
        _ => {
            let problem = format!("lost the connection to the broker while inspecting {name:?}: {error}");
            (Exit::BrokerUnavailable, problem)
        }
    };
    Failure::new(exit, problem)
}

fn missing(name: &str) -> Failure {
    let advice = "run `garenne topology apply`, or check --prefix";
    Failure::new(Exit::Failed, format_args!("{name:?} is missing: {advice}"))
}

/// Inspects queues and exchanges. The broker closes the channel if an object is missing, so the next inspection opens a
/// new one.
pub struct QueueInspector<'c> {
    connection: &'c Connection,
    channel: Option<Channel>,
}

impl<'c> QueueInspector<'c> {
    /// An inspector on this connection.
    pub fn new(connection: &'c Connection) -> Self {
        Self { connection, channel: None }
    }

    async fn channel(&mut self, name: &str) -> Result<Channel, Failure> {
        match self.channel.take() {
            Some(channel) => Ok(channel),
            None => self.connection.create_channel().await.map_err(|error| failure(name, &error)),
        }
    }

    /// Result of a passive declare on `channel`; `None` if the object is missing.
    fn found<T>(
        &mut self,
        channel: Channel,
        name: &str,
        declared: lapin::Result<T>,
    ) -> Result<Option<T>, Failure> {
        match declared {
            Ok(found) => {
                self.channel = Some(channel);
                Ok(Some(found))
            }
            Err(error) => match error.kind() {
                ErrorKind::ProtocolError(reply) if reply.get_id() == NOT_FOUND => Ok(None),
                _ => Err(failure(name, &error)),
            },
        }
    }

    /// Whether an exchange exists.
    pub async fn has_exchange(&mut self, name: &str) -> Result<bool, Failure> {
        let channel = self.channel(name).await?;
        let options = ExchangeDeclareOptions { passive: true, durable: true, ..Default::default() };
        // A passive declare does not compare the type.
        let kind = ExchangeKind::Topic;
        let declared = channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await;
        Ok(self.found(channel, name, declared)?.is_some())
    }

    /// A queue, if it exists, without its unacknowledged messages: a passive declare does not count them.
    pub async fn find(&mut self, queue: &str) -> Result<Option<QueueStatus>, Failure> {
        let channel = self.channel(queue).await?;
        let options = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
        let declared = channel.queue_declare(queue.into(), options, FieldTable::default()).await;
        let found = self.found(channel, queue, declared)?;
        Ok(found.map(|queue| QueueStatus {
            ready: queue.message_count().into(),
            consumers: queue.consumer_count().into(),
            ..QueueStatus::default()
        }))
    }

    /// As [`find`](Self::find), for a queue that must exist.
    pub async fn depth(&mut self, queue: &str) -> Result<QueueStatus, Failure> {
        self.find(queue).await?.ok_or_else(|| missing(queue))
    }
}
