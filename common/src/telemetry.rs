//! Logs, metrics, traces and the admin port.

pub mod admin;
pub mod metrics;
pub mod traces;
#[cfg(feature = "cli")]
pub mod tracing;

pub use metrics::Metrics;
pub use traces::Traces;
