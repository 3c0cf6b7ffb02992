//! What is on the wire, and nothing that talks to it: tasks and their copies, sensor data, the topology as
//! data, and heartbeats.
//!
//! Everything here is pure: no input or output, no clock of its own, no AMQP client. Programs in one fleet
//! agree on what they exchange because they read and write it with this crate.

pub mod heartbeat;
pub mod sensor;
pub mod task;
pub mod topology;
