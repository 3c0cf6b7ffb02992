//! What every part of Garenne must agree on: tasks on the wire, topology, broker connections, the
//! local pool, configuration, telemetry and shutdown.
//!
//! Imports run one way. `pool`, `resilience` and `sensor` know nothing of AMQP; only `task`, `topology` and
//! `broker` name the AMQP client.

pub mod broker;
pub mod config;
pub mod exit;
pub mod pool;
pub mod resilience;
pub mod sensor;
pub mod shutdown;
pub mod task;
pub mod telemetry;
pub mod topology;
