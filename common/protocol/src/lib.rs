//! The wire format: tasks and their copies, sensor data, the broker topology and rights on it, heartbeats and records of
//! commands.
//!
//! All code here is pure: it does no I/O, reads no clock and has no AMQP client. Every program of a fleet
//! encodes and decodes its messages with this crate.

pub mod audit;
pub mod heartbeat;
pub mod list;
mod quoted;
pub mod rights;
#[cfg(feature = "sensor")]
pub mod sensor;
pub mod settlement;
pub mod task;
pub mod topology;

pub use quoted::{quoted, shown_number};

/// AMQP's types of the properties and headers of a message.
pub mod amqp {
    pub use amq_protocol::{
        protocol::BasicProperties,
        types::{AMQPValue, FieldTable, ShortString},
    };
}
