//! Connections to the broker, confirmed publishing, and declaring the topology.
//!
//! Publishing and consuming use separate connections: an alarm blocks publishing connections, and a
//! blocked connection's acks and heartbeats would wait as well.

mod connect;
mod dead_letters;
pub mod declare;
mod error;
pub mod frames;
mod heartbeat_publisher;
mod publisher;
pub mod reply;
mod transport;
mod wire;

pub use connect::{Broker, retry_while_unavailable};
pub use dead_letters::DeadLetters;
pub use error::BrokerError;
pub use frames::{take_unreadable, unreadable};
pub use heartbeat_publisher::{HeartbeatPublisher, RestoreExchange};
#[cfg(feature = "simulation")]
pub use publisher::simulated;
pub use publisher::{Pending, PendingReply, PublishError, Publisher, PublisherConfig};
pub use wire::{Message, Target};
