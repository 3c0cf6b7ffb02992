//! Hearing heartbeats: a queue of this console's own, which goes with its connection.

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
    operator::Operator,
    orders::{Command, EVERYBODY},
    queues::LookError,
};

/// Beats that may wait here; beyond that the oldest go, for newer ones say the same.
const MOST_WAITING: i64 = 20_000;
/// A beat is bounded by its writer; what is larger is none.
const LARGEST: usize = 256 * 1024;

/// A place among the listeners to the fleet.
pub struct Ear {
    /// The connection lives as long as this.
    pub connection: Connection,
    channel: Channel,
    beats: Consumer,
    control: String,
}

impl Ear {
    /// Begins to hear.
    ///
    /// # Errors
    /// One line and an exit code; a console needs configure, write and read on its own queue
    /// `<prefix>.console.*` and read on the events exchange.
    pub async fn open(operator: &Operator) -> Result<Self, Failure> {
        let connection = operator.connect().await?;
        let queue = operator.names.console(&uuid::Uuid::now_v7().to_string());
        let events = operator.names.events();
        let broken = |error| LookError::of(&events, error);
        let channel = connection.create_channel().await.map_err(broken)?;
        let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(MOST_WAITING));
        channel.queue_declare(queue.as_str().into(), options, arguments).await.map_err(broken)?;
        let (to, from) = (queue.as_str().into(), events.as_str().into());
        let none = FieldTable::default();
        let bound = channel.queue_bind(to, from, BEATS.into(), QueueBindOptions::default(), none);
        bound.await.map_err(broken)?;
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let none = FieldTable::default();
        let beats = channel.basic_consume(queue.as_str().into(), "".into(), options, none);
        let beats = beats.await.map_err(broken)?;
        Ok(Self { beats, channel, connection, control: operator.names.control() })
    }

    /// Asks every worker to say now what it would say at its next beat.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn ask(&self) -> Result<(), lapin::Error> {
        let body = serde_json::to_vec(&Command::Beat).expect("a constant");
        let (exchange, key) = (self.control.as_str().into(), EVERYBODY.into());
        let options = BasicPublishOptions::default();
        self.channel.basic_publish(exchange, key, options, &body, BasicProperties::default()).await.map(drop)
    }

    /// The next beat; what cannot be read is passed over.
    ///
    /// # Errors
    /// The connection is gone, or the queue.
    pub async fn next(&mut self) -> Result<Heartbeat, String> {
        loop {
            match self.beats.next().await {
                Some(Ok(message))
                    if message.data.len() > LARGEST || unreadable(&message.properties).is_some() => {}
                Some(Ok(message)) => match serde_json::from_slice(&message.data) {
                    Ok(beat) => return Ok(beat),
                    Err(error) => tracing::debug!(%error, "a heartbeat that cannot be read"),
                },
                Some(Err(error)) => return Err(error.to_string()),
                None => return Err("the console's queue was deleted".to_owned()),
            }
        }
    }
}
