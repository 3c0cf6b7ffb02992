//! An alert in the form in which it is sent, and the outcome of sending it.

use std::{
    error::Error,
    sync::{Arc, OnceLock},
    time::Duration,
};

use garenne_common::{resilience::NoPermit, telemetry::Traces, text::with_causes};
use garenne_protocol::{
    sensor::Timestamp,
    task::{TaskId, TraceContext},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::settings::WebhookUrl;

/// An alert that waits for its batch.
#[derive(Clone, Serialize)]
pub(super) struct OutgoingAlert {
    pub(super) id: TaskId,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) timestamp: Timestamp,
    pub(super) data: Map<String, Value>,
    /// Set when the batch was delivered.
    #[serde(skip)]
    pub(super) delivered: Arc<OnceLock<Delivered>>,
    #[serde(skip)]
    pub(super) trace: Option<TraceContext>,
    #[serde(skip)]
    pub(super) traces: Traces,
}

/// The result: the alert was delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Delivered {
    /// The `webhook-id` of the request: the alert's id, or one for all alerts of its batch.
    pub webhook_id: String,
    /// The status of the response, 200 to 299.
    pub status: u16,
    /// The number of alerts in the request.
    pub batch: usize,
}

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
    /// Not sent: other requests to the host took all permits for the time limit of one request.
    #[error("{host}: {problem}")]
    Busy { host: String, problem: NoPermit },
    /// The worker is stopping.
    #[error("the worker is stopping")]
    Closed,
}

impl DeliveryError {
    /// Whether an immediate retry is worthwhile. A receiver that sent `Retry-After` is not asked before.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::ServerError { retry_after: None, .. } | Self::Unreachable { .. })
    }

    /// Whether the host failed: no response, or a server error. Refusals and rate limits do not open its circuit.
    pub(super) fn counts_for_breaker(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::ServerError { status: 500.., .. })
    }

    /// A request that failed in this step.
    pub(super) fn unreachable(url: &WebhookUrl, step: &str, error: impl Error + 'static) -> Self {
        Self::Unreachable { host: url.authority(), detail: format!("{step}: {}", with_causes(&error)) }
    }
}
