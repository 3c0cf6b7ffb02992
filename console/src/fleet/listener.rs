//! Receives heartbeats on an exclusive queue, which the broker deletes with the connection.

use futures_util::StreamExt;
use garenne_amqp::unreadable;
use garenne_common::exit::Failure;
use garenne_protocol::heartbeat::{BEATS, Heartbeat};
use lapin::{
    BasicProperties, Channel, Connection, Consumer,
    options::{BasicConsumeOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};

use crate::{
    directives::{ALL_WORKERS, WorkerCommand},
    operator::Operator,
    queues::InspectError,
};

/// Length limit of the queue. The broker drops the oldest heartbeats first; newer ones repeat their counters.
const MAX_QUEUED: i64 = 20_000;
/// Larger messages are ignored: processes limit their heartbeats to less.
const MAX_BYTES: usize = 256 * 1024;

/// A subscription to the fleet's heartbeats.
pub struct HeartbeatListener {
    /// The connection of the subscription.
    pub connection: Connection,
    channel: Channel,
    heartbeats: Consumer,
    control: String,
}

impl HeartbeatListener {
    /// Subscribes.
    ///
    /// # Errors
    /// One line and an exit code. The user needs configure, write and read permission on `<prefix>.console.*`
    /// and read permission on the events exchange.
    pub async fn open(operator: &Operator) -> Result<Self, Failure> {
        let connection = operator.connect().await?;
        let queue = operator.names.console(&uuid::Uuid::now_v7().to_string());
        let events = operator.names.events();
        let error = |source| InspectError::of(&events, source);
        let channel = connection.create_channel().await.map_err(error)?;
        let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(MAX_QUEUED));
        channel.queue_declare(queue.as_str().into(), options, arguments).await.map_err(error)?;
        let (to, from) = (queue.as_str().into(), events.as_str().into());
        let none = FieldTable::default();
        let bound = channel.queue_bind(to, from, BEATS.into(), QueueBindOptions::default(), none);
        bound.await.map_err(error)?;
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let none = FieldTable::default();
        let heartbeats = channel.basic_consume(queue.as_str().into(), "".into(), options, none);
        let heartbeats = heartbeats.await.map_err(error)?;
        Ok(Self { heartbeats, channel, connection, control: operator.names.control() })
    }

    /// Asks every worker for a heartbeat now.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn request(&self) -> Result<(), lapin::Error> {
        let body = serde_json::to_vec(&WorkerCommand::Beat).expect("a constant");
        let (exchange, key) = (self.control.as_str().into(), ALL_WORKERS.into());
        let options = BasicPublishOptions::default();
        self.channel.basic_publish(exchange, key, options, &body, BasicProperties::default()).await.map(drop)
    }

    /// The next heartbeat. Messages that cannot be parsed are skipped.
    ///
    /// # Errors
    /// The connection is closed or the queue was deleted.
    pub async fn next(&mut self) -> Result<Heartbeat, String> {
        loop {
            match self.heartbeats.next().await {
                Some(Ok(message))
                    if message.data.len() > MAX_BYTES || unreadable(&message.properties).is_some() => {}
                Some(Ok(message)) => match serde_json::from_slice(&message.data) {
                    Ok(heartbeat) => return Ok(heartbeat),
                    Err(error) => tracing::debug!(%error, "ignored a malformed heartbeat"),
                },
                Some(Err(error)) => return Err(error.to_string()),
                None => return Err("the console's queue was deleted".to_owned()),
            }
        }
    }
}
