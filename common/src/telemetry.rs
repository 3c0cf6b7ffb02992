//! Logs, metrics, heartbeats and the admin port.

pub mod admin;
pub mod heartbeat;
pub mod metrics;
pub mod tracing;

pub use metrics::Metrics;
