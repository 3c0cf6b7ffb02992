//! A broker that a simulation publishes to. The publisher's limits and timeouts stay the real ones.

use std::sync::{Arc, atomic::AtomicBool};

use futures_util::future::BoxFuture;
use garenne_common::connection::ConnectionObserver;

use super::{Outlet, PublishError, Publisher, PublisherConfig, pending_publish::PendingPublish};
use crate::wire::{Message, Target};

/// What a [`Publisher`] needs of a broker: its connection, its confirm channel and its channel of announcements.
pub trait PublishBroker: Send + Sync + 'static {
    /// Opens the connection.
    fn connect(&self) -> BoxFuture<'_, Result<(), PublishError>>;

    /// Takes a message. It waits for the connection if there is none; [`Outgoing::claim`] says when it is sent.
    fn publish(&self, outgoing: Outgoing);

    /// Sends a message without a confirm.
    fn announce(&self, message: Message) -> BoxFuture<'_, Result<(), PublishError>>;

    /// Closes the connection, after the messages in flight were waited for.
    fn close(&self);
}

/// A message whose sender waits for its confirm. If it is dropped without an answer, it is in doubt.
pub struct Outgoing(pub(super) PendingPublish);

impl Outgoing {
    /// The message. A clone shares its body.
    pub fn message(&self) -> Message {
        let PendingPublish { address, mandatory, properties, body, .. } = &self.0;
        let target = Target {
            exchange: address.exchange.to_string(),
            routing_key: address.routing_key.to_string(),
            mandatory: *mandatory,
        };
        Message { target, properties: properties.clone(), body: body.clone() }
    }

    /// Call it when the message is written to the connection. False if its sender gave up before: nothing is sent then.
    pub fn claim(&self) -> bool {
        self.0.claim()
    }

    /// Whether its sender still waits for the outcome.
    pub fn is_awaited(&self) -> bool {
        !self.0.answer.is_closed()
    }

    /// Frees the message's place among those in flight and tells its sender the outcome.
    pub fn answer(self, outcome: Result<(), PublishError>) {
        let PendingPublish { answer, permit, .. } = self.0;
        drop(permit);
        // Fails if the sender has stopped waiting.
        let _ = answer.send(outcome);
    }
}

impl Publisher {
    /// A publisher whose messages go to `broker`. Publishers are blocked while `blocked` is true.
    pub fn simulated(
        broker: Arc<dyn PublishBroker>,
        blocked: Arc<AtomicBool>,
        config: PublisherConfig,
        observer: Option<Arc<dyn ConnectionObserver>>,
    ) -> Self {
        Self::with_outlet(Outlet::Simulated(broker), config, observer, blocked)
    }
}
