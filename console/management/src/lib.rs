//! Client of RabbitMQ's management API (HTTP).
//!
//! It answers what AMQP cannot: unacknowledged messages and the arguments of queues. Numbers are as old as the broker's
//! statistics, five seconds by default.

mod client;
mod queue;

pub use client::ManagementClient;
pub use queue::{QueueCounts, STATISTICS_INTERVAL};
