//! The parts that every Garenne program needs: configuration, logs, metrics, traces, the admin port, shutdown, exit
//! codes, supervised tasks and backoff.
//!
//! Wire formats are in `garenne-protocol`, broker connections in `garenne-amqp`, the local worker pool in
//! `garenne-pool`.

pub mod backoff;
#[cfg(feature = "client-tls")]
pub mod client_tls;
pub mod clock;
pub mod config;
pub mod exit;
pub mod log_limit;
pub mod pattern;
pub mod random;
pub mod reloaded;
pub mod resilience;
pub mod shutdown;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod stdout;
pub mod supervise;
pub mod telemetry;
pub mod text;
