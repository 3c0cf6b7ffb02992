//! The parts that every Garenne program needs: configuration, logs, metrics, traces, the admin port, shutdown, exit
//! codes, supervised tasks and backoff.
//!
//! With the feature `program` it is all of that; without it, only what a client of the broker needs.
//!
//! Wire formats are in `garenne-protocol`, broker connections in `garenne-amqp`, the local worker pool in
//! `garenne-pool`.

pub mod backoff;
pub mod certificates;
#[cfg(feature = "client-tls")]
pub mod client_tls;
pub mod clock;
#[cfg(feature = "program")]
pub mod config;
pub mod connection;
pub mod exit;
pub mod lock;
pub mod log_limit;
#[cfg(feature = "program")]
pub mod memory;
pub mod parse_error;
pub mod pattern;
pub mod random;
pub mod reloaded;
#[cfg(feature = "program")]
pub mod resilience;
pub mod secret_url;
#[cfg(feature = "program")]
pub mod shutdown;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod stdout;
pub mod supervise;
#[cfg(feature = "program")]
pub mod telemetry;
pub mod text;
#[cfg(feature = "webhook")]
pub mod webhook;
