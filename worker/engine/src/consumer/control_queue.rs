//! The worker's control queue. It receives commands, and because it is exclusive, its existence shows other
//! workers that this worker's connection is open.
//!
//! An exchange that is deleted takes its bindings with it, and the broker notifies no client. So the queue is bound again from time
//! to time, which changes nothing while its bindings exist.

use std::time::Duration;

use futures_util::StreamExt;
use garenne_amqp::{reply::NOT_FOUND, unreadable};
use garenne_common::{backoff::Backoff, telemetry::Metrics};
use garenne_protocol::topology::Names;
use tokio::{
    sync::watch,
    time::{Instant, interval_at},
};

use super::broker::{ChannelError, ConsumeBroker, ConsumeChannel};

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
    /// Time between two checks of the bindings.
    pub(crate) check_interval: Duration,
    /// The problem with the exchange that was logged last.
    pub(crate) reported: Option<String>,
    /// Why the queue was lost, or not declared, the last time.
    pub(crate) problem: watch::Sender<String>,
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
                Err(error) => {
                    if is_missing(&error) {
                        self.restore().await;
                    }
                    error.to_string()
                }
            };
            let wait = backoff.next_wait();
            tracing::debug!(worker = self.worker, problem, ?wait, "control queue lost, declaring it again");
            self.problem.send_replace(problem);
            tokio::time::sleep(wait).await;
        }
    }

    /// Consumes the queue on one channel until the queue is deleted.
    async fn consume(&mut self, backoff: &mut Backoff) -> anyhow::Result<()> {
        let channel = self.broker.open(PREFETCH).await?;
        let (queue, control) = (self.names.worker(&self.worker), self.names.control());
        let keys = [&*format!("worker.{}", self.worker), ALL_WORKERS_KEY];
        let mut messages = channel.consume_control_queue(&queue, &control, &keys).await?;
        backoff.reset();
        self.reported = None;
        (self.on_declared)().await;
        let skipped = self.metrics.unreadable(&queue);
        let mut checks = interval_at(Instant::now() + self.check_interval, self.check_interval);
        loop {
            let message = tokio::select! {
                biased;
                message = messages.next() => message,
                _ = checks.tick() => {
                    self.bind_again(&queue, &control, &keys).await;
                    continue;
                }
            };
            let Some(message) = message.transpose()? else { return Ok(()) };
            if let Some(problem) = unreadable(&message.properties) {
                skipped.inc();
                tracing::warn!(worker = self.worker, problem, "skipped an unreadable command");
            } else {
                (self.on_command)(&message.body);
            }
        }
    }

    /// Binds the queue again, and declares the exchange before if it is missing.
    async fn bind_again(&mut self, queue: &str, control: &str, keys: &[&str]) {
        let mut bound = bind(&self.broker, queue, control, keys).await;
        if bound.as_ref().is_err_and(is_missing) && self.restore().await {
            bound = bind(&self.broker, queue, control, keys).await;
        }
        match bound {
            Ok(()) => self.reported = None,
            Err(problem) => tracing::debug!(worker = self.worker, %problem, "cannot bind the control queue"),
        }
    }

    /// Declares the missing exchange again, as far as the user's rights allow.
    async fn restore(&mut self) -> bool {
        let exchange = self.names.control();
        let Err(reason) = self.broker.restore_topology().await else {
            tracing::warn!(exchange, "the exchange of commands was missing and is declared again");
            return true;
        };
        let reason = reason.to_string();
        if self.reported.as_ref() != Some(&reason) {
            tracing::warn!(exchange, reason, "no command reaches this worker: the exchange is missing");
            self.reported = Some(reason);
        }
        false
    }
}

/// Binds a control queue on a channel of its own. The broker closes the channel if the exchange is missing, and with the channel
/// of its consumer it would delete the queue: other workers would take this one for crashed.
async fn bind(broker: &impl ConsumeBroker, queue: &str, exchange: &str, keys: &[&str]) -> anyhow::Result<()> {
    let channel = broker.open(1).await?;
    channel.bind_control_queue(queue, exchange, keys).await?;
    // An error means that the channel is closed already.
    let _ = channel.close().await;
    Ok(())
}

/// Whether the broker has no such exchange.
fn is_missing(error: &anyhow::Error) -> bool {
    let reply = error.downcast_ref::<ChannelError>().and_then(|error| error.reply.as_ref());
    reply.is_some_and(|(code, text)| *code == NOT_FOUND && text.contains("no exchange"))
}
