//! What every program of Garenne needs besides its own work: configuration, logs, metrics, traces, the admin
//! port, shutdown and exit codes.
//!
//! What is on the wire is in `garenne-protocol`, the broker's side in `garenne-amqp`, the local worker pool in
//! `garenne-pool`.

pub mod config;
pub mod exit;
pub mod resilience;
pub mod shutdown;
pub mod telemetry;
pub mod text;
