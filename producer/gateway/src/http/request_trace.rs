//! The span of a request. It starts after the authentication, so that unknown senders cause no spans.

use std::sync::{Arc, Mutex};

use axum::extract::MatchedPath;
use axum::http::{HeaderMap, Method, request};
use garenne_common::{
    lock::lock,
    telemetry::traces::{Begun, Span, SpanKind, Traces},
};
use garenne_protocol::task::TraceContext;

use crate::auth::Peer;

/// Longest attribute of a span that a sender chooses, in bytes.
const MAX_ATTRIBUTE: usize = 128;

/// The trace of a request. The handler starts it, and `observe` ends it: clones share it.
#[derive(Clone, Default)]
pub(super) struct RequestTrace(Arc<Mutex<Started>>);

#[derive(Default)]
struct Started {
    context: Option<TraceContext>,
    span: Option<Span>,
}

impl RequestTrace {
    /// Starts the span of an authenticated request under the sender's trace context.
    pub(super) fn start(&self, traces: &Traces, head: &request::Parts) {
        let sent = sent_trace(&head.headers);
        let Begun { context, span } = match head.method {
            Method::POST => traces.begin(sent.as_ref(), SpanKind::Server, |span| describe(span, head)),
            _ => Begun { context: sent, span: None },
        };
        *lock(&self.0) = Started { context, span };
    }

    /// The trace context that the request's tasks and its audit line continue. `None` before [`RequestTrace::start`].
    pub(super) fn context(&self) -> Option<TraceContext> {
        lock(&self.0).context.clone()
    }

    /// Takes the span, to complete it.
    pub(super) fn take_span(&self) -> Option<Span> {
        lock(&self.0).span.take()
    }
}

/// The sender's trace context.
fn sent_trace(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    TraceContext::parse(text("traceparent")?, text("tracestate"))
}

/// Sets the attributes of a request's span.
fn describe(span: &mut Span, head: &request::Parts) {
    let route = head.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    span.name(format!("{} {route}", head.method).trim_end().to_owned());
    span.set("http.request.method", head.method.to_string());
    span.set("http.route", route.to_owned());
    span.set("url.path", bounded(head.uri.path()).to_owned());
    if let Some(peer) = head.extensions.get::<Peer>() {
        span.set("client.address", peer.address.ip().to_string());
    }
}

/// The start of a text, at most [`MAX_ATTRIBUTE`] bytes.
fn bounded(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_ATTRIBUTE)]
}
