//! Tells workers from processes that only claim to be some: a worker has a control queue, which takes a right that only
//! workers have.

use std::time::Duration;

use futures_util::future::join_all;
use garenne_amqp::{Message, PublishError, Publisher, PublisherConfig, Target};
use garenne_operator::operator::Operator;
use lapin::BasicProperties;
use tokio::time::timeout;

use crate::worker_command::{WorkerCommand, worker_key};

/// Time limit of a check. The broker answers within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Finds the control queues of workers by asking each worker for a heartbeat: the broker returns a command that no queue
/// takes.
pub struct ControlQueues {
    publisher: Publisher,
    exchange: String,
}

impl ControlQueues {
    /// Nothing connects yet.
    pub fn new(operator: &Operator) -> Self {
        let publisher = Publisher::new(operator.broker.clone(), PublisherConfig::default());
        Self { publisher, exchange: operator.names.control() }
    }

    /// The workers of which the broker says whether they have a control queue, and its answer. While an alarm blocks
    /// publishers, every worker counts as a real one.
    pub async fn find(&self, workers: Vec<String>) -> Vec<(String, bool)> {
        let found = workers.into_iter().map(async |worker| {
            let body = serde_json::to_vec(&WorkerCommand::Beat).expect("a constant");
            let target = Target::exchange(self.exchange.clone(), worker_key(&worker));
            // Transient: it is worthless after a restart of the broker.
            let properties = BasicProperties::default().with_delivery_mode(1);
            let message = Message { target, properties, body: body.into() };
            let exists = match timeout(TIMEOUT, self.publisher.offer(message)).await {
                Ok(Ok(()) | Err(PublishError::Blocked)) => true,
                Ok(Err(PublishError::Unroutable { .. })) => false,
                Ok(Err(error)) => {
                    tracing::debug!(worker, %error, "cannot tell whether the worker has a control queue");
                    return None;
                }
                Err(_) => return None,
            };
            Some((worker, exists))
        });
        join_all(found).await.into_iter().flatten().collect()
    }
}
