//! The worker's control queue. It receives commands, and because it is exclusive, its existence shows other
//! workers that this worker's connection is open.

use std::time::Duration;

use futures_util::StreamExt;
use garenne_amqp::unreadable;
use garenne_common::backoff::Backoff;
use garenne_protocol::topology::Names;
use lapin::{
    Channel,
    message::Delivery,
    options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};

use super::{
    connection::ConsumerConnection,
    reply::{self, NOT_FOUND, RESOURCE_LOCKED},
};

/// The routing key of commands to all workers.
const ALL_WORKERS_KEY: &str = "workers";

/// Whether a worker's control queue exists. `None` if the broker does not answer.
pub(crate) async fn exists(connection: &ConsumerConnection, names: &Names, worker: &str) -> Option<bool> {
    let (_connection, channel) = connection.channel(1).await.ok()?;
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    match channel.queue_declare(names.worker(worker).into(), options, FieldTable::default()).await {
        Ok(_) => {
            // This connection holds the queue, so it is this worker's own.
            let _ = channel.close(200, "checked".into()).await;
            Some(true)
        }
        Err(error) => match reply::code(&error) {
            Some(RESOURCE_LOCKED) => Some(true),
            Some(NOT_FOUND) => Some(false),
            _ => None,
        },
    }
}

/// The worker's own queue, which commands arrive on.
pub(crate) struct ControlQueue<D, C> {
    pub(crate) connection: ConsumerConnection,
    pub(crate) names: Names,
    pub(crate) worker: String,
    /// Called each time the queue was declared.
    pub(crate) on_declared: D,
    /// Called for each message.
    pub(crate) on_command: C,
}

impl<D: AsyncFnMut(), C: Fn(&[u8])> ControlQueue<D, C> {
    /// Declares and consumes the queue, across reconnects; never returns. May be called again after a panic.
    pub(crate) async fn run(&mut self) {
        let Self { connection, names, worker, on_declared, on_command } = self;
        let mut backoff = Backoff::reconnect();
        loop {
            let problem = match connection.channel(100).await {
                Ok((_connection, channel)) => {
                    let skipped = connection.unreadable(&names.worker(worker));
                    let on_message = |message: &Delivery| match unreadable(&message.properties) {
                        Some(problem) => {
                            skipped.inc();
                            tracing::warn!(worker, problem, "skipped an unreadable command");
                        }
                        None => on_command(&message.data),
                    };
                    let consumed =
                        consume(&channel, names, worker, on_declared, &on_message, &mut backoff).await;
                    consumed
                        .err()
                        .map_or_else(|| "the queue was deleted".to_owned(), |error| error.to_string())
                }
                Err(error) => error.to_string(),
            };
            let wait: Duration = backoff.next_wait();
            tracing::debug!(worker, problem, ?wait, "control queue lost, declaring it again");
            tokio::time::sleep(wait).await;
        }
    }
}

async fn consume(
    channel: &Channel,
    names: &Names,
    worker: &str,
    on_declared: &mut impl AsyncFnMut(),
    on_message: &impl Fn(&Delivery),
    backoff: &mut Backoff,
) -> Result<(), lapin::Error> {
    let queue = names.worker(worker);
    let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
    channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await?;
    for key in [format!("worker.{worker}"), ALL_WORKERS_KEY.to_owned()] {
        let (queue, exchange) = (queue.as_str().into(), names.control().into());
        let options = QueueBindOptions::default();
        channel.queue_bind(queue, exchange, key.into(), options, FieldTable::default()).await?;
    }
    let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
    let mut messages =
        channel.basic_consume(queue.as_str().into(), "".into(), options, FieldTable::default()).await?;
    backoff.reset();
    on_declared().await;
    while let Some(message) = messages.next().await {
        on_message(&message?);
    }
    Ok(())
}
