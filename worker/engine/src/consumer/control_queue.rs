//! The worker's own queue: exclusive, so that its existence tells that the worker lives, and where
//! commands to it arrive.

use std::time::Duration;

use futures_util::StreamExt;
use garenne_amqp::{Backoff, unreadable};
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

/// The routing key of commands to every worker.
const EVERYBODY: &str = "workers";

/// Whether a worker's queue is there. Nothing, when the broker cannot be asked.
pub(crate) async fn is_alive(link: &ConsumerConnection, names: &Names, worker: &str) -> Option<bool> {
    let (_connection, channel) = link.channel(1).await.ok()?;
    let look = QueueDeclareOptions { passive: true, ..Default::default() };
    match channel.queue_declare(names.worker(worker).into(), look, FieldTable::default()).await {
        Ok(_) => {
            // Our own.
            let _ = channel.close(200, "looked".into()).await;
            Some(true)
        }
        Err(error) => match reply::code(&error) {
            Some(RESOURCE_LOCKED) => Some(true),
            Some(NOT_FOUND) => Some(false),
            _ => None,
        },
    }
}

/// Keeps the worker's queue for as long as it lives. `present` is called each time the queue is
/// there anew, and `command` for each message on it.
pub(crate) async fn keep(
    link: ConsumerConnection,
    names: Names,
    worker: String,
    mut present: impl AsyncFnMut(),
    command: impl Fn(&[u8]),
) {
    let mut backoff = Backoff::reconnect();
    loop {
        let problem = match link.channel(100).await {
            Ok((_connection, channel)) => {
                let skipped = link.unreadable(&names.worker(&worker));
                let command = |message: &Delivery| match unreadable(&message.properties) {
                    Some(problem) => {
                        skipped.inc();
                        tracing::warn!(worker, problem, "skipped a command that cannot be read");
                    }
                    None => command(&message.data),
                };
                let held = hold(&channel, &names, &worker, &mut present, &command, &mut backoff).await;
                held.err().map_or_else(|| "the queue was deleted".to_owned(), |error| error.to_string())
            }
            Err(error) => error.to_string(),
        };
        let wait: Duration = backoff.next_wait();
        tracing::debug!(worker, problem, ?wait, "the worker's own queue is gone, will declare it again");
        tokio::time::sleep(wait).await;
    }
}

async fn hold(
    channel: &Channel,
    names: &Names,
    worker: &str,
    present: &mut impl AsyncFnMut(),
    command: &impl Fn(&Delivery),
    backoff: &mut Backoff,
) -> Result<(), lapin::Error> {
    let queue = names.worker(worker);
    let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
    channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await?;
    for key in [format!("worker.{worker}"), EVERYBODY.to_owned()] {
        let (queue, exchange) = (queue.as_str().into(), names.control().into());
        let options = QueueBindOptions::default();
        channel.queue_bind(queue, exchange, key.into(), options, FieldTable::default()).await?;
    }
    let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
    let mut commands =
        channel.basic_consume(queue.as_str().into(), "".into(), options, FieldTable::default()).await?;
    backoff.reset();
    present().await;
    while let Some(message) = commands.next().await {
        command(&message?);
    }
    Ok(())
}
