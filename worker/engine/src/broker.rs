//! Certificates for connections to a broker, and its errors as they are in the errors of this crate.

#[cfg(feature = "worker")]
pub use garenne_amqp::declare::TopologyError;
pub use garenne_amqp::{BrokerError, PublishError};
pub use garenne_common::certificates::Certificates;
