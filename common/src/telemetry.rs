//! Logs, metrics, traces and the admin port.

pub mod admin;
mod heartbeat_source;
pub mod metrics;
mod service;
#[cfg_attr(not(feature = "otlp"), path = "telemetry/no_traces.rs")]
pub mod traces;
#[cfg(feature = "cli")]
pub mod tracing;

pub use heartbeat_source::HeartbeatSource;
pub use metrics::Metrics;
pub use traces::Traces;
