//! The span of a request to a webhook.

use garenne_common::telemetry::traces::{Begun, Span, SpanKind};
use garenne_protocol::task::TraceContext;
use url::Url;

use super::courier::{Item, Setback};

/// Begins it. There is one trace that a request can belong to: of a batch it is that of the first alert
/// whose trace somebody keeps, and the others are linked.
pub(super) fn begin(items: &[Item], url: &Url) -> Begun {
    let kept = |item: &&Item| item.traces.may_keep(item.trace.as_ref());
    let traced = |item: &&Item| item.trace.is_some();
    let Some(first) = items.iter().find(kept).or_else(|| items.iter().find(traced)) else {
        return Begun { context: None, span: None };
    };
    first.traces.begin(first.trace.as_ref(), SpanKind::Client, |span| {
        span.name("POST");
        span.set("http.request.method", "POST");
        // The path may be a secret.
        span.set("server.address", url.host_str().unwrap_or_default().to_owned());
        span.set("server.port", i64::from(url.port_or_known_default().unwrap_or_default()));
        span.set("garenne.batch", i64::try_from(items.len()).unwrap_or(i64::MAX));
        let own = first.trace.as_ref().map(TraceContext::trace_id);
        let others = items.iter().filter_map(|item| item.trace.as_ref());
        others.filter(|trace| Some(trace.trace_id()) != own).for_each(|trace| span.link(trace));
    })
}

/// Ends it, where there is one.
pub(super) fn end(span: Option<Span>, outcome: &Result<u16, Setback>) {
    let Some(mut span) = span else { return };
    let status = match outcome {
        Ok(status) => Some(*status),
        Err(Setback::Refused { status, .. } | Setback::Busy { status, .. }) => Some(*status),
        Err(_) => None,
    };
    if let Some(status) = status {
        span.set("http.response.status_code", i64::from(status));
    }
    if let Err(setback) = outcome {
        span.failed(setback.to_string());
    }
    span.end();
}
