//! Metrics, audit log and spans of requests.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, Method, Response},
    middleware::Next,
};
use garenne_common::telemetry::traces::{Begun, Span, SpanKind};
use garenne_protocol::task::TraceContext;

use crate::{auth::Peer, context::GatewayContext, refusal::RefusalCode};

/// The number of records that a response confirms.
#[derive(Clone, Copy)]
pub(super) struct ConfirmedRecords(pub(super) usize);

/// Counts every response, including those of the router, and writes refusals to the audit log.
pub(super) async fn observe(
    State(gateway): State<Arc<GatewayContext>>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let protocol = match request.uri().path() {
        "/api/v2/write" | "/write" | "/query" | "/ping" | "/health" => "influx",
        _ => "http",
    };
    let peer = request.extensions().get::<Peer>().cloned();
    let sent = sent_trace(request.headers());
    let Begun { context, mut span } = match request.method() {
        &Method::POST => {
            gateway.traces.begin(sent.as_ref(), SpanKind::Server, |span| describe(span, &request))
        }
        _ => Begun { context: sent, span: None },
    };
    if let Some(context) = &context {
        request.extensions_mut().insert(context.clone());
    }
    let response = next.run(request).await;
    let records = response.extensions().get::<ConfirmedRecords>().map_or(0, |confirmed| confirmed.0);
    gateway.instruments.answered(protocol, response.status().as_str(), records);
    if let (Some(RefusalCode(code)), Some(peer)) = (response.extensions().get(), peer) {
        // The body may be unread: the connection lingers at its end, so that the sender gets the response.
        peer.set_refused();
        peer.audit(protocol, code, context.as_ref());
        if let Some(span) = &mut span {
            span.set("error.type", *code);
        }
    }
    if let Some(mut span) = span {
        let status = response.status();
        span.set("http.response.status_code", i64::from(status.as_u16()));
        span.set("garenne.records", i64::try_from(records).unwrap_or(i64::MAX));
        if status.is_server_error() {
            span.failed(status.canonical_reason().unwrap_or_default());
        }
    }
    response
}

/// The sender's trace context.
fn sent_trace(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    TraceContext::parse(text("traceparent")?, text("tracestate"))
}

/// Sets the attributes of a request's span.
fn describe(span: &mut Span, request: &Request) {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    span.name(format!("{} {route}", request.method()).trim_end().to_owned());
    span.set("http.request.method", request.method().to_string());
    span.set("http.route", route.to_owned());
    span.set("url.path", request.uri().path().to_owned());
    if let Some(peer) = request.extensions().get::<Peer>() {
        span.set("client.address", peer.address.ip().to_string());
    }
}
