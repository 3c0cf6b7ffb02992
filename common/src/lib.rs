//! What every part of Garenne must agree on: tasks on the wire, topology, broker connections, the
//! configuration, telemetry and shutdown. The local worker pool is a crate of its own, `garenne-pool`.
//!
//! Imports run one way. `resilience` and `sensor` know nothing of AMQP; only `task`, `topology` and
//! `broker` name the AMQP client.

pub mod broker;
pub mod config;
pub mod exit;
pub mod resilience;
pub mod sensor;
pub mod shutdown;
pub mod task;
pub mod telemetry;
pub mod text;
pub mod topology;
