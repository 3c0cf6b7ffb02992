//! A message ready to be published.

use bytes::Bytes;
use lapin::BasicProperties;

use garenne_protocol::topology::LaneQueues;

/// Where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The exchange; empty for the default one.
    pub exchange: String,
    /// The routing key; a queue's name through the default exchange.
    pub routing_key: String,
    /// Whether a message that reaches no queue is an error.
    pub mandatory: bool,
}

impl Target {
    /// Straight to a queue, which must exist.
    pub fn queue(name: String) -> Self {
        Self { exchange: String::new(), routing_key: name, mandatory: true }
    }

    /// Straight to a lane's queue, or to one of them, past the lane's bindings.
    pub fn lane(place: LaneQueues<'_>) -> Self {
        let (exchange, routing_key) = place.entry();
        Self { exchange, routing_key, mandatory: true }
    }

    /// To an exchange; a queue must take it.
    pub fn exchange(exchange: String, routing_key: String) -> Self {
        Self { exchange, routing_key, mandatory: true }
    }

    /// To an exchange, whether anybody listens or not.
    pub fn announce(exchange: String, routing_key: String) -> Self {
        Self { exchange, routing_key, mandatory: false }
    }
}

/// What is sent there.
#[derive(Clone, Debug)]
pub struct Message {
    /// Where to.
    pub target: Target,
    /// Properties; `message_id` tells returned messages apart.
    pub properties: BasicProperties,
    /// The body, shared with whoever may have to send it again.
    pub body: Bytes,
}
