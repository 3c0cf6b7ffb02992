//! The reasons why an alert is not delivered.

use std::time::Duration;

/// An alert was not delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    /// The webhook is unknown, or the URL or its address is not allowed.
    #[error("{0}")]
    InvalidDestination(String),
    /// The receiver rejected the request. A retry cannot succeed.
    #[error("{host} answered {status}{detail}")]
    Rejected { host: String, status: u16, detail: String, batch_size: usize },
    /// The receiver is overloaded or failed. A retry may succeed.
    #[error("{host} answered {status}{detail}")]
    ServerError { host: String, status: u16, detail: String, retry_after: Option<Duration> },
    /// The request failed or timed out before a response.
    #[error("{host}: {detail}")]
    Unreachable { host: String, detail: String },
    /// Not sent: the host's circuit breaker is open.
    #[error("{host} failed too often; no requests for {remaining:?}")]
    CircuitOpen { host: String, remaining: Duration },
    /// The worker is stopping.
    #[error("the worker is stopping")]
    Closed,
}

impl DeliveryError {
    /// Whether an immediate retry is worthwhile. A receiver that sent `Retry-After` is not asked before.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::ServerError { retry_after: None, .. } | Self::Unreachable { .. })
    }
}
