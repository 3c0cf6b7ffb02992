//! Inspects queues and exchanges by passive declare, which changes nothing. Since RabbitMQ 4.3.1 it needs any permission
//! on the object, before that none.

use garenne_common::exit::{Exit, HasExit};
use lapin::{
    Channel, Connection, ErrorKind, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueDeclareOptions},
    types::FieldTable,
};
use serde::Serialize;
use thiserror::Error;

/// One queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueStatus {
    /// Messages ready for delivery.
    pub ready: u64,
    /// Messages delivered and not settled; unknown without the management API.
    pub unacked: Option<u64>,
    /// Number of consumers.
    pub consumers: u64,
    /// Messages published to it since the broker counts; unknown without the management API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<u64>,
}

impl QueueStatus {
    /// The sum of two queues, with the lower number of consumers.
    pub(super) fn combined(self, other: Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one? + other?);
        Self {
            ready: self.ready + other.ready,
            unacked: sum(self.unacked, other.unacked),
            consumers: self.consumers.min(other.consumers),
            published: sum(self.published, other.published),
        }
    }
}

/// A failed inspection.
#[derive(Debug, Error)]
pub enum InspectError {
    /// The object does not exist.
    #[error("{0:?} is missing: run `garenne topology apply`, or check --prefix")]
    Missing(String),
    /// The user has no permission.
    #[error("the broker denied access to {name:?}: {detail}")]
    Denied {
        /// The object's name.
        name: String,
        /// The broker's message.
        detail: String,
    },
    /// The connection failed.
    #[error("lost the connection to the broker while inspecting {name:?}: {source}")]
    Broker {
        /// The object's name.
        name: String,
        /// The client's error.
        source: lapin::Error,
    },
}

impl HasExit for InspectError {
    fn exit(&self) -> Exit {
        match self {
            Self::Missing(_) => Exit::Failed,
            Self::Denied { .. } => Exit::Denied,
            Self::Broker { .. } => Exit::BrokerUnavailable,
        }
    }
}

impl InspectError {
    /// The error for the broker's reply code.
    pub fn of(name: &str, source: lapin::Error) -> Self {
        let name = name.to_owned();
        match source.kind() {
            ErrorKind::ProtocolError(broker) => match broker.get_id() {
                404 => Self::Missing(name),
                403 => Self::Denied { name, detail: broker.get_message().to_string() },
                _ => Self::Broker { name, source },
            },
            _ => Self::Broker { name, source },
        }
    }
}

/// What an inspection found; nothing if the object is missing.
///
/// # Errors
/// Any other [`InspectError`].
pub fn existing<T>(inspected: Result<T, InspectError>) -> Result<Option<T>, InspectError> {
    match inspected {
        Err(InspectError::Missing(_)) => Ok(None),
        inspected => inspected.map(Some),
    }
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

    async fn channel(&mut self, name: &str) -> Result<Channel, InspectError> {
        match self.channel.take() {
            Some(channel) => Ok(channel),
            None => self.connection.create_channel().await.map_err(|e| InspectError::of(name, e)),
        }
    }

    /// Checks that an exchange exists.
    ///
    /// # Errors
    /// [`InspectError`].
    pub async fn exchange(&mut self, name: &str) -> Result<(), InspectError> {
        let channel = self.channel(name).await?;
        let options = ExchangeDeclareOptions { passive: true, durable: true, ..Default::default() };
        // A passive declare does not compare the type.
        channel
            .exchange_declare(name.into(), ExchangeKind::Topic, options, FieldTable::default())
            .await
            .map_err(|e| InspectError::of(name, e))?;
        self.channel = Some(channel);
        Ok(())
    }

    /// A queue without its unacknowledged messages: a passive declare does not count them.
    ///
    /// # Errors
    /// [`InspectError`].
    pub async fn depth(&mut self, queue: &str) -> Result<QueueStatus, InspectError> {
        let channel = self.channel(queue).await?;
        let options = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
        let found = channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await
            .map_err(|e| InspectError::of(queue, e))?;
        self.channel = Some(channel);
        let (ready, consumers) = (found.message_count().into(), found.consumer_count().into());
        Ok(QueueStatus { ready, consumers, ..QueueStatus::default() })
    }
}
