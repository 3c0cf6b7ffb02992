//! The broker operations of a fleet member, as a trait so that its decisions can be tested without a broker.

use std::time::Duration;

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::{Message, PublishError, Publisher};
use garenne_protocol::topology::Names;
use tokio::time::timeout;

use crate::consumer::QueueAdmin;

/// Timeout for the publisher confirm of a record.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// The broker operations of a [`Member`](super::Member).
pub(crate) trait FleetBroker: Send + Sync {
    /// Publishes a record and waits for its confirm.
    fn publish(&self, message: Message) -> BoxFuture<'_, Result<(), PublishError>>;

    /// Whether a worker's control queue exists. `None` if the broker does not answer.
    fn control_queue_exists<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Option<bool>>;
}

/// The broker, over the worker's connections.
pub(crate) struct FleetConnection {
    pub(crate) queues: Box<dyn QueueAdmin>,
    pub(crate) publisher: Publisher,
    pub(crate) names: Names,
}

impl FleetBroker for FleetConnection {
    fn publish(&self, message: Message) -> BoxFuture<'_, Result<(), PublishError>> {
        // The worker's publisher itself waits for a confirm for as long as it is connected, also during an alarm.
        let publishing = timeout(CONFIRM_TIMEOUT, self.publisher.publish(message));
        let unconfirmed = |_| PublishError::InDoubt(format!("no confirm within {CONFIRM_TIMEOUT:?}"));
        async move { publishing.await.map_err(unconfirmed).flatten() }.boxed()
    }

    fn control_queue_exists<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Option<bool>> {
        async move { self.queues.queue_exists(&self.names.worker(worker)).await }.boxed()
    }
}
