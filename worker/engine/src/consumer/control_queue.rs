//! The worker's control queue. It receives commands, and because it is exclusive, its existence shows other
//! workers that this worker's connection is open.

use futures_util::StreamExt;
use garenne_amqp::unreadable;
use garenne_common::{backoff::Backoff, telemetry::Metrics};
use garenne_protocol::topology::Names;

use super::broker::{ConsumeBroker, ConsumeChannel};

/// The routing key of commands to all workers.
const ALL_WORKERS_KEY: &str = "workers";

/// Unacknowledged messages at a time. It has no effect, because commands are not acked.
const PREFETCH: u16 = 100;

/// The worker's own queue, which commands arrive on.
pub(crate) struct ControlQueue<B, D, C> {
    pub(crate) broker: B,
    pub(crate) metrics: Metrics,
    pub(crate) names: Names,
    pub(crate) worker: String,
    /// Called each time the queue was declared.
    pub(crate) on_declared: D,
    /// Called for each message.
    pub(crate) on_command: C,
}

impl<B: ConsumeBroker, D: AsyncFnMut(), C: Fn(&[u8])> ControlQueue<B, D, C> {
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
        let channel = self.broker.open(PREFETCH).await?;
        let (queue, worker) = (self.names.worker(&self.worker), &self.worker);
        let keys = [&*format!("worker.{worker}"), ALL_WORKERS_KEY];
        let mut messages = channel.consume_control_queue(&queue, &self.names.control(), &keys).await?;
        backoff.reset();
        (self.on_declared)().await;
        let skipped = self.metrics.unreadable(&queue);
        while let Some(message) = messages.next().await {
            let message = message?;
            if let Some(problem) = unreadable(&message.properties) {
                skipped.inc();
                tracing::warn!(worker, problem, "skipped an unreadable command");
            } else {
                (self.on_command)(&message.body);
            }
        }
        Ok(())
    }
}
