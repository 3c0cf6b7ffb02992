//! Errors of the broker, as they are in the errors of this crate.

#[cfg(feature = "worker")]
pub use garenne_amqp::declare::TopologyError;
pub use garenne_amqp::{BrokerError, PublishError};
