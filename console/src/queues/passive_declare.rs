//! Queues and exchanges by passive declare, which changes nothing. From RabbitMQ 4.3.1 it needs some right on the object,
//! before that none.

use garenne_common::exit::{Exit, HasExit};
use lapin::{
    Channel, Connection, ErrorKind, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueDeclareOptions},
    types::FieldTable,
};
use thiserror::Error;

/// What a passive declare answers. Unacknowledged messages are not among it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Messages ready for delivery.
    pub ready: u64,
    /// Consumers attached.
    pub consumers: u64,
}

/// A look that failed.
#[derive(Debug, Error)]
pub enum LookError {
    /// It is not there.
    #[error("{0:?} is missing: run `garenne topology apply` (or is it another --prefix?)")]
    Missing(String),
    /// The user may not look.
    #[error("the broker denied a look at {name:?}: {detail}")]
    Denied {
        /// Its name.
        name: String,
        /// The broker's words.
        detail: String,
    },
    /// The connection failed on the way.
    #[error("lost the broker while looking at {name:?}: {source}")]
    Broker {
        /// Its name.
        name: String,
        /// What the client said.
        source: lapin::Error,
    },
}

impl HasExit for LookError {
    fn exit(&self) -> Exit {
        match self {
            Self::Missing(_) => Exit::Failed,
            Self::Denied { .. } => Exit::Denied,
            Self::Broker { .. } => Exit::BrokerUnavailable,
        }
    }
}

impl LookError {
    /// Tells what the broker's reply code means for `queue`.
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

/// Looks at queues; a missing one closes its channel, so the next look opens another.
pub struct Looker<'c> {
    connection: &'c Connection,
    channel: Option<Channel>,
}

impl<'c> Looker<'c> {
    /// Looks over this connection.
    pub fn new(connection: &'c Connection) -> Self {
        Self { connection, channel: None }
    }

    async fn channel(&mut self, name: &str) -> Result<Channel, LookError> {
        match self.channel.take() {
            Some(channel) => Ok(channel),
            None => self.connection.create_channel().await.map_err(|e| LookError::of(name, e)),
        }
    }

    /// Whether an exchange is there; an error says why not.
    ///
    /// # Errors
    /// [`LookError`].
    pub async fn exchange(&mut self, name: &str) -> Result<(), LookError> {
        let channel = self.channel(name).await?;
        let options = ExchangeDeclareOptions { passive: true, durable: true, ..Default::default() };
        // A passive declare does not compare the type.
        channel
            .exchange_declare(name.into(), ExchangeKind::Topic, options, FieldTable::default())
            .await
            .map_err(|e| LookError::of(name, e))?;
        self.channel = Some(channel);
        Ok(())
    }

    /// How deep a queue is.
    ///
    /// # Errors
    /// [`LookError`].
    pub async fn depth(&mut self, queue: &str) -> Result<Depth, LookError> {
        let channel = self.channel(queue).await?;
        let options = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
        let found = channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await
            .map_err(|e| LookError::of(queue, e))?;
        self.channel = Some(channel);
        Ok(Depth { ready: found.message_count().into(), consumers: found.consumer_count().into() })
    }
}
