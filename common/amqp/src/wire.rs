//! A message ready to be published.

use bytes::Bytes;
use garenne_protocol::topology::LaneQueues;
use lapin::BasicProperties;

/// The destination of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The exchange; empty for the default one.
    pub exchange: String,
    /// The routing key; a queue's name through the default exchange.
    pub routing_key: String,
    /// AMQP's `mandatory`: a message that reaches no queue is returned, and publishing it fails.
    pub mandatory: bool,
}

impl Target {
    /// A queue, through the default exchange. The queue must exist.
    pub fn queue(name: String) -> Self {
        Self { exchange: String::new(), routing_key: name, mandatory: true }
    }

    /// A lane's queue, or one of its shards, without the lane's bindings.
    pub fn lane(queues: LaneQueues<'_>) -> Self {
        let (exchange, routing_key) = queues.entry();
        Self { exchange, routing_key, mandatory: true }
    }

    /// An exchange. At least one queue must be bound to it for the routing key.
    pub fn exchange(exchange: String, routing_key: String) -> Self {
        Self { exchange, routing_key, mandatory: true }
    }

    /// An exchange, not mandatory: without a bound queue the broker drops the message.
    pub fn announce(exchange: String, routing_key: String) -> Self {
        Self { exchange, routing_key, mandatory: false }
    }
}

/// A message and its destination.
#[derive(Clone, Debug)]
pub struct Message {
    /// Where it is published to.
    pub target: Target,
    /// The properties. `message_id` identifies the message if the broker returns it.
    pub properties: BasicProperties,
    /// The body. A clone shares it, so that keeping a copy to send again is cheap.
    pub body: Bytes,
}
