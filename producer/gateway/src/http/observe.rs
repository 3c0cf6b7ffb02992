//! Metrics, audit log and spans of requests.

use std::sync::{Arc, atomic::Ordering};

use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{Method, Response},
    middleware::Next,
};
use garenne_common::telemetry::traces::{Begun, Span, SpanKind};

use super::{request::trace, response::Receipted};
use crate::{audit::audit, auth::Peer, parts::Parts, problem::RefusalCode};

/// Counts every answer, those of the router itself included, and leaves a line for each refusal.
pub(super) async fn observe(
    State(parts): State<Arc<Parts>>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let protocol = match request.uri().path() {
        "/api/v2/write" | "/write" | "/query" | "/ping" | "/health" => "influx",
        _ => "http",
    };
    let peer = request.extensions().get::<Peer>().cloned();
    let sent = trace(request.headers());
    let Begun { context, mut span } = match request.method() {
        &Method::POST => parts.traces.begin(sent.as_ref(), SpanKind::Server, |span| describe(span, &request)),
        _ => Begun { context: sent, span: None },
    };
    if let Some(context) = &context {
        request.extensions_mut().insert(context.clone());
    }
    let response = next.run(request).await;
    let records = response.extensions().get::<Receipted>().map_or(0, |receipted| receipted.0);
    parts.instruments.answered(protocol, response.status().as_str(), records);
    if let (Some(RefusalCode(code)), Some(peer)) = (response.extensions().get(), peer) {
        // Its body may be unread: the answer must reach the sender all the same.
        peer.refused().store(true, Ordering::Relaxed);
        audit(&peer, protocol, code, context.as_ref());
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

/// What the span of a request says of it.
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
