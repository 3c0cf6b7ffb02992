//! `POST /v1/metrics`: metrics of OpenTelemetry (OTLP over HTTP).

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, Response, StatusCode, header},
    response::IntoResponse,
};

use super::{
    api::durability_header,
    request::{Authenticated, ConfirmedRecords, text},
};
use crate::{
    auth::Peer,
    context::GatewayContext,
    otlp::{self, OtlpEncoding},
    refusal::Refusal,
};

/// Publishes the data points of gauges and sums as readings. 200 after the broker has confirmed all of them.
pub(super) async fn metrics(State(gateway): State<Arc<GatewayContext>>, request: Request) -> Response<Body> {
    let encoding = encoding_of(request.headers());
    let peer = request.extensions().get::<Peer>().cloned();
    match export(&gateway, request, peer.as_ref()).await {
        Ok(response) => response,
        Err(refusal) => {
            let encoding = encoding.unwrap_or(OtlpEncoding::Json);
            let retry_after = gateway.limits.retry_after;
            refused(encoding, Refusal { retry_after: retry_of(&refusal, retry_after), ..refusal })
        }
    }
}

fn encoding_of(headers: &HeaderMap) -> Result<OtlpEncoding, Refusal> {
    let content_type = text(headers, "content-type")?.unwrap_or_default();
    OtlpEncoding::of(content_type).ok_or_else(|| Refusal::media_type(content_type, "application/x-protobuf"))
}

async fn export(
    gateway: &Arc<GatewayContext>,
    request: Request,
    peer: Option<&Peer>,
) -> Result<Response<Body>, Refusal> {
    let mut request = Authenticated::new(gateway, request, None)?;
    let encoding = encoding_of(&request.head.headers)?;
    let body = request.read_body(gateway, gateway.limits.max_body).await?;
    let trace = request.trace();
    let stored = gateway.ingest.ingest_metrics(encoding, body, request.into_sender(None)).await;
    let (receipts, rejected) = stored?;
    for (code, count) in &rejected.counts {
        gateway.instruments.rejected("otlp", code, *count);
    }
    if let Some(peer) = peer.filter(|_| !rejected.is_empty()) {
        gateway.instruments.audit.refused(peer, "otlp", "rejected-points", trace.as_ref());
    }
    let records = Extension(ConfirmedRecords(receipts.ids.len()));
    let media_type = [(header::CONTENT_TYPE, encoding.media_type())];
    let body = otlp::exported(encoding, &rejected);
    Ok((StatusCode::OK, records, media_type, durability_header(receipts.durability), body).into_response())
}

/// A body that was too slow may be sent again, so that exporters keep it.
fn retry_of(refusal: &Refusal, retry_after: std::time::Duration) -> Option<std::time::Duration> {
    match refusal.status {
        StatusCode::REQUEST_TIMEOUT => Some(retry_after),
        _ => refusal.retry_after,
    }
}

fn refused(encoding: OtlpEncoding, refusal: Refusal) -> Response<Body> {
    let (status, body) = otlp::status(encoding, &refusal);
    refusal.response(status, encoding.media_type(), body)
}
