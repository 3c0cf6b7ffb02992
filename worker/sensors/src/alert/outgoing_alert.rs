//! An alert in the form in which it is sent.

use std::sync::{Arc, OnceLock};

use garenne_common::telemetry::Traces;
use garenne_protocol::{
    sensor::Timestamp,
    task::{TaskId, TraceContext},
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Delivered;

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
    /// The trace that the alert belongs to.
    #[serde(skip)]
    pub(super) trace: Option<TraceContext>,
    #[serde(skip)]
    pub(super) traces: Traces,
}

impl OutgoingAlert {
    pub(super) fn new(id: TaskId, kind: String, timestamp: Timestamp, data: Map<String, Value>) -> Self {
        let (trace, traces) = (None, Traces::default());
        Self { id, kind, timestamp, data, delivered: Arc::default(), trace, traces }
    }

    pub(super) fn with_trace(self, trace: Option<TraceContext>, traces: &Traces) -> Self {
        Self { trace, traces: traces.clone(), ..self }
    }
}
