//! What the broker sends to clients.

use std::sync::Arc;

use crate::{
    id::{ChannelId, ConnectionId, ConsumerId, RequestId},
    message::{Delivery, Message},
};

/// Something that a client reads from its connection. Events of a connection keep their order.
#[derive(Clone, Debug)]
pub enum Event {
    /// `basic.deliver`.
    Delivery {
        /// The channel of the consumer.
        channel: ChannelId,
        /// The delivery.
        delivery: Delivery,
    },
    /// The answer to a synchronous request.
    Answer {
        /// The channel of the request.
        channel: ChannelId,
        /// The request.
        request: RequestId,
        /// The answer.
        answer: Answer,
    },
    /// `basic.ack` or `basic.nack` of a published message.
    Confirm {
        /// The channel.
        channel: ChannelId,
        /// The number of the publish on its channel, from 1.
        sequence: u64,
        /// False for `basic.nack`.
        acked: bool,
    },
    /// `basic.return`. It comes before the confirm of the message.
    Returned {
        /// The channel.
        channel: ChannelId,
        /// The number of the publish on its channel. Real clients have to find it by other means.
        sequence: u64,
        /// The message.
        message: Arc<Message>,
    },
    /// `basic.cancel` by the broker: its queue was deleted, or its consumer timeout passed (from 4.3).
    ConsumerCancelled {
        /// The channel.
        channel: ChannelId,
        /// The consumer.
        consumer: ConsumerId,
    },
    /// `channel.close` by the broker.
    ChannelClosed {
        /// The channel.
        channel: ChannelId,
        /// Why.
        reason: CloseReason,
    },
    /// The connection ended, and all its channels with it.
    ConnectionClosed {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        reason: CloseReason,
    },
    /// `connection.blocked`: the broker reads nothing more from this connection.
    Blocked(ConnectionId),
    /// `connection.unblocked`.
    Unblocked(ConnectionId),
}

/// The answer to a request. A request that makes the broker close the channel has none.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The consumer exists.
    Consuming(ConsumerId),
    /// The consumer is cancelled. No delivery of it follows.
    Cancelled(ConsumerId),
    /// The answer to `basic.get`.
    Got(Option<Delivery>),
    /// The answer to a declaration.
    Exists {
        /// Ready messages.
        ready: u32,
        /// Consumers.
        consumers: u32,
    },
    /// The channel is closed.
    Closed,
}

/// An AMQP reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseReason {
    /// The reply code; 0 if the connection ended without one.
    pub code: u16,
    /// The reply text.
    pub text: String,
}

impl CloseReason {
    pub(crate) fn new(code: u16, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn not_found(what: &str, name: &str) -> Self {
        Self::new(404, format!("NOT_FOUND - no {what} '{name}' in vhost '/'"))
    }

    pub(crate) fn timed_out(channel: ChannelId, timeout: &str) -> Self {
        let text = format!(
            "PRECONDITION_FAILED - delivery acknowledgement on {channel} timed out. Timeout value used: {timeout} ms"
        );
        Self::new(406, text)
    }

    pub(crate) fn unknown_tag(tag: u64) -> Self {
        Self::new(406, format!("PRECONDITION_FAILED - unknown delivery tag {tag}"))
    }
}
