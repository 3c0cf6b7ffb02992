//! The worker's control queue. It receives commands, and because it is exclusive, its existence shows other
//! workers that this worker's connection is open.

use futures_util::StreamExt;
use garenne_amqp::unreadable;
use garenne_common::backoff::Backoff;
use garenne_protocol::topology::Names;
use lapin::{
    options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};

use super::connection::ConsumerConnection;

/// The routing key of commands to all workers.
const ALL_WORKERS_KEY: &str = "workers";

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
        let mut backoff = Backoff::reconnect();
        loop {
            let problem = match self.consume(&mut backoff).await {
                Ok(()) => "the queue was deleted".to_owned(),
                Err(error) => error.to_string(),
            };
            let wait = backoff.next_wait();
            tracing::debug!(worker = self.worker, problem, ?wait, "control queue lost, declaring it again");
            tokio::time::sleep(wait).await;
        }
    }

    /// Consumes the queue on one channel until the queue is deleted.
    async fn consume(&mut self, backoff: &mut Backoff) -> anyhow::Result<()> {
        let (_connection, channel) = self.connection.channel(100).await?;
        let (queue, worker) = (self.names.worker(&self.worker), &self.worker);
        let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
        channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await?;
        for key in [format!("worker.{worker}"), ALL_WORKERS_KEY.to_owned()] {
            let (queue, exchange) = (queue.as_str().into(), self.names.control().into());
            let options = QueueBindOptions::default();
            channel.queue_bind(queue, exchange, key.into(), options, FieldTable::default()).await?;
        }
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let mut messages =
            channel.basic_consume(queue.as_str().into(), "".into(), options, FieldTable::default()).await?;
        backoff.reset();
        (self.on_declared)().await;
        let skipped = self.connection.metrics.unreadable(&queue);
        while let Some(message) = messages.next().await {
            let message = message?;
            if let Some(problem) = unreadable(&message.properties) {
                skipped.inc();
                tracing::warn!(worker, problem, "skipped an unreadable command");
            } else {
                (self.on_command)(&message.data);
            }
        }
        Ok(())
    }
}
