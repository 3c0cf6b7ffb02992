//! Logs, metrics and the admin port.

pub mod admin;
pub mod metrics;
pub mod tracing;

pub use metrics::Metrics;
