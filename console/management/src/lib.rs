//! Client of RabbitMQ's management API (HTTP).
//!
//! It answers what AMQP cannot: unacknowledged messages, arguments of queues, and other clients' connections.
//! Numbers are as old as the broker's statistics, five seconds by default.

mod admin;
mod client;
mod error;
mod vhost;

pub use client::ManagementClient;
pub use error::ManagementError;
pub use vhost::{ConnectionStatus, ConsumerStatus, QueueStatus, VhostView};
