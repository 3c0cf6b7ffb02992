//! Steps of every request: the sender's address behind a proxy, the check of its origin, metrics, audit log and
//! the end of its span.

use std::sync::Arc;

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{Method, Response, StatusCode, Uri, header},
    middleware::Next,
    response::IntoResponse,
};

use garenne_protocol::quoted;

use super::{
    influx::InfluxRefusal,
    request::{ConfirmedRecords, LeftOutCodes},
    request_trace::RequestTrace,
};
use crate::{
    auth::Peer, context::GatewayContext, problem::RefusalCode, refusal::Refusal, source_limit::SourcePermit,
};

/// Longest text of an error of the router, in bytes.
const MAX_TEXT: usize = 16 * 1024;

/// Counts every response, including those of the router, and writes refusals to the audit log.
pub(super) async fn observe(
    State(gateway): State<Arc<GatewayContext>>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let protocol = match request.uri().path() {
        "/api/v2/write" | "/write" | "/query" | "/ping" | "/health" => "influx",
        "/v1/metrics" => "otlp",
        _ => "http",
    };
    let peer = peer_of(&gateway, &mut request);
    let trace = RequestTrace::default();
    request.extensions_mut().insert(trace.clone());
    let response = match admit(&gateway, &mut request) {
        // The permit is held until the response.
        Ok(_source) => {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            explained(next.run(request).await, protocol, &method, &uri).await
        }
        Err(refusal) => refusal.into_response(),
    };
    let records = response.extensions().get::<ConfirmedRecords>().map_or(0, |confirmed| confirmed.0);
    gateway.instruments.answered(protocol, response.status().as_str(), records);
    let refused = response.extensions().get::<RefusalCode>().map(|code| code.0);
    if let (Some(LeftOutCodes(codes)), Some(peer)) = (response.extensions().get(), &peer) {
        for code in codes {
            gateway.instruments.audit.refused(peer, protocol, code, trace.context().as_ref());
        }
    }
    if let (Some(code), Some(peer)) = (refused, peer) {
        // The body may be unread: the connection lingers at its end, so that the sender gets the response.
        peer.set_refused();
        gateway.instruments.audit.refused(&peer, protocol, code, trace.context().as_ref());
    }
    if let Some(mut span) = trace.take_span() {
        if let Some(code) = refused {
            span.set("error.type", code);
        }
        let status = response.status();
        span.set("http.response.status_code", i64::from(status.as_u16()));
        span.set("garenne.records", i64::try_from(records).unwrap_or(i64::MAX));
        if status.is_server_error() {
            span.failed(status.canonical_reason().unwrap_or_default());
        }
    }
    response
}

/// The response, or in the place of the router's own error, which is a plain text or empty, one that programs can read.
async fn explained(response: Response<Body>, protocol: &str, method: &Method, uri: &Uri) -> Response<Body> {
    let (status, media_type) = (response.status(), response.headers().get(header::CONTENT_TYPE));
    let is_plain = media_type.is_none_or(|it| it.as_bytes().starts_with(b"text/plain"));
    if !(status.is_client_error() || status.is_server_error()) || !is_plain {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, MAX_TEXT).await.unwrap_or_default();
    let path = quoted(uri.path());
    let detail = match status {
        StatusCode::NOT_FOUND => format!("no route {path}; GET /openapi.json lists them"),
        StatusCode::METHOD_NOT_ALLOWED => format!("{method} is not allowed for {path}"),
        _ => String::from_utf8_lossy(&text).into_owned(),
    };
    let refusal = Refusal::of_router(status, &detail);
    let mut response = match protocol {
        "influx" => InfluxRefusal::from(refusal).into_response(),
        _ => refusal.into_response(),
    };
    if let Some(allowed) = parts.headers.get(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allowed.clone());
    }
    response
}

/// The sender: the other end of the connection, or the address that a trusted proxy names.
fn peer_of(gateway: &GatewayContext, request: &mut Request) -> Option<Peer> {
    let peer: &Peer = request.extensions().get()?;
    let Some(sender) = gateway.network.forwarded_for(peer.address.ip(), request.headers()) else {
        return Some(peer.clone());
    };
    let peer = peer.forwarded_for(sender);
    request.extensions_mut().insert(peer.clone());
    Some(peer)
}

/// Checks where a request comes from. Returns a permit to hold while it is served. A request behind a proxy has an account
/// of its own, because its connection is that of many senders. Refuses a page of another origin, and a sender behind
/// a proxy that has too many requests.
fn admit(gateway: &GatewayContext, request: &mut Request) -> Result<Option<SourcePermit>, Refusal> {
    gateway.network.check_origin(request.headers())?;
    // Connections without a proxy are counted when they are accepted.
    let forwarded = request.extensions().get::<Peer>().filter(|peer| peer.is_forwarded());
    let Some(peer) = forwarded else { return Ok(None) };
    let limits = &gateway.limits;
    let permit = gateway.network.sources.admit(peer.address.ip());
    let permit = permit.ok_or_else(|| {
        Refusal::too_many_of_a_source(limits.max_connections_per_source, limits.retry_after)
    })?;
    request.extensions_mut().insert(gateway.budget.account(permit.source()));
    Ok(Some(permit))
}
