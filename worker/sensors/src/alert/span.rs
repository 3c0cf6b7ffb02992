//! The trace span of a request to a webhook.

use garenne_common::telemetry::traces::{Begun, Span, SpanKind};
use garenne_protocol::task::TraceContext;
use url::Url;

use super::delivery::{DeliveryError, OutgoingAlert};

/// Begins the span. A span has one parent: the first alert of the batch whose trace is sampled, else the first
/// one with a trace. The traces of the others are linked.
pub(super) fn begin(alerts: &[OutgoingAlert], url: &Url) -> Begun {
    let is_sampled = |alert: &&OutgoingAlert| alert.traces.may_keep(alert.trace.as_ref());
    let has_trace = |alert: &&OutgoingAlert| alert.trace.is_some();
    let Some(parent) = alerts.iter().find(is_sampled).or_else(|| alerts.iter().find(has_trace)) else {
        return Begun { context: None, span: None };
    };
    parent.traces.begin(parent.trace.as_ref(), SpanKind::Client, |span| {
        span.name("POST");
        span.set("http.request.method", "POST");
        // Without the path, which may be a secret.
        span.set("server.address", url.host_str().unwrap_or_default().to_owned());
        span.set("server.port", i64::from(url.port_or_known_default().unwrap_or_default()));
        span.set("garenne.batch", i64::try_from(alerts.len()).unwrap_or(i64::MAX));
        let own = parent.trace.as_ref().map(TraceContext::trace_id);
        let others = alerts.iter().filter_map(|alert| alert.trace.as_ref());
        others.filter(|trace| Some(trace.trace_id()) != own).for_each(|trace| span.link(trace));
    })
}

/// Ends the span, if there is one, with the status of the response or the error.
pub(super) fn end(span: Option<Span>, outcome: &Result<u16, DeliveryError>) {
    let Some(mut span) = span else { return };
    let status = match outcome {
        Ok(status) => Some(*status),
        Err(DeliveryError::Rejected { status, .. } | DeliveryError::ServerError { status, .. }) => {
            Some(*status)
        }
        Err(_) => None,
    };
    if let Some(status) = status {
        span.set("http.response.status_code", i64::from(status));
    }
    if let Err(error) = outcome {
        span.failed(error.to_string());
    }
    span.end();
}
