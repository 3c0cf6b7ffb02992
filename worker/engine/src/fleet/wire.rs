//! What a member asks of the broker, so that its decisions can be tested without one.

use std::time::Duration;

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::{Message, PublishError, Publisher};
use garenne_protocol::topology::Names;
use tokio::time::timeout;

use crate::consumer::{ConsumerConnection, control_queue};

/// How long the confirm of a record is waited for.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// The broker, as a member of the fleet uses it.
pub(crate) trait Wire: Send + Sync {
    /// Publishes a record and waits for its confirm.
    fn publish(&self, message: Message) -> BoxFuture<'_, Result<(), PublishError>>;

    /// Whether a worker's control queue exists. Nothing when the broker cannot be asked.
    fn has_queue<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Option<bool>>;
}

/// The connections of this worker.
pub(crate) struct BrokerWire {
    pub(crate) link: ConsumerConnection,
    pub(crate) publisher: Publisher,
    pub(crate) names: Names,
}

impl Wire for BrokerWire {
    fn publish(&self, message: Message) -> BoxFuture<'_, Result<(), PublishError>> {
        // The worker's publisher waits for a confirm as long as it is connected, an alarm included.
        let publishing = timeout(CONFIRM_TIMEOUT, self.publisher.publish(message));
        publishing
            .map(|published| {
                published.unwrap_or_else(|_| {
                    Err(PublishError::InDoubt(format!("no confirm within {CONFIRM_TIMEOUT:?}")))
                })
            })
            .boxed()
    }

    fn has_queue<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Option<bool>> {
        control_queue::exists(&self.link, &self.names, worker).boxed()
    }
}
