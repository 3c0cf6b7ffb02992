//! Exchange and routing key as AMQP's short strings.

use lapin::{BasicProperties, types::ShortString};

use super::PublishError;
use crate::wire::Target;

/// Longest exchange name and routing key, in bytes.
const MAX_NAME: usize = 255;

/// A target's exchange and routing key, each at most [`MAX_NAME`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
}

impl Address {
    /// Fails with [`PublishError::TooLarge`] if the exchange or the routing key is too long.
    pub(super) fn of(target: Target) -> Result<Self, PublishError> {
        let fit = |what, name: String| {
            let bytes = name.len();
            ShortString::try_new(name).map_err(|_| PublishError::TooLarge { what, bytes, limit: MAX_NAME })
        };
        Ok(Self {
            exchange: fit("exchange", target.exchange)?,
            routing_key: fit("routing key", target.routing_key)?,
        })
    }
}

/// Identifies a message that may be returned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub(super) address: Address,
    id: Option<ShortString>,
}

impl Identity {
    /// Foreign messages that are passed on unchanged may have no id; those of Celery have a correlation id.
    pub(super) fn of(address: Address, properties: &BasicProperties) -> Self {
        let id = properties.message_id().as_ref().or(properties.correlation_id().as_ref());
        Self { address, id: id.cloned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_over_255_bytes_are_an_error() {
        assert!(Address::of(Target::exchange("e".repeat(255), "k".repeat(255))).is_ok());
        let error = Address::of(Target::queue("q".repeat(256))).unwrap_err().to_string();
        assert_eq!(error, "the message's routing key has 256 bytes, 255 are allowed");
        let error = Address::of(Target::exchange("e".repeat(300), String::new())).unwrap_err().to_string();
        assert_eq!(error, "the message's exchange has 300 bytes, 255 are allowed");
    }
}
