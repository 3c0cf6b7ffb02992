//! Handlers of the gateway's own API.

use std::sync::Arc;

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    http::{Response, StatusCode, header},
    response::IntoResponse,
};
use garenne_protocol::{sensor::parse::Form, task::TaskId};
use serde::Serialize;

use super::{
    observe::ConfirmedRecords,
    request::{Authenticated, text},
};
use crate::{
    context::GatewayContext, ingest::ReadingsFormat, memory::Reservation, payload::Receipts, refusal::Refusal,
};

/// `POST /v1/readings`.
pub(super) async fn readings(
    State(gateway): State<Arc<GatewayContext>>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let mut request = Authenticated::new(&gateway, request, None)?;
    let format =
        ReadingsFormat::Json(Form::of(text(&request.head.headers, "content-type")?.unwrap_or_default())?);
    let idempotency_key = request.idempotency_key()?;
    let body = request.read_body(&gateway, gateway.limits.max_body).await?;
    gateway.ingest.ingest_readings(format, body, request.into_sender(idempotency_key)).await.map(accepted)
}

/// `POST /v1/map/{name}`.
pub(super) async fn mapped(
    State(gateway): State<Arc<GatewayContext>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let mut request = Authenticated::new(&gateway, request, None)?;
    let map = gateway.maps.get(&name)?;
    let format = ReadingsFormat::Mapped { map, path: request.head.uri.path().to_owned() };
    let idempotency_key = request.idempotency_key()?;
    let body = request.read_body(&gateway, gateway.limits.max_body).await?;
    gateway.ingest.ingest_readings(format, body, request.into_sender(idempotency_key)).await.map(accepted)
}

/// `POST /v1/tasks/{kind}`.
pub(super) async fn task(
    State(gateway): State<Arc<GatewayContext>>,
    Path(kind): Path<String>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let mut request = Authenticated::new(&gateway, request, None)?;
    let idempotency_key = request.idempotency_key()?;
    let task = request.task(gateway.ingest.routes.kind(&kind)?, idempotency_key.as_ref())?;
    let body = request.read_body(&gateway, gateway.limits.max_body).await?;
    gateway.ingest.ingest_task(task, body, request.into_sender(idempotency_key)).await.map(accepted)
}

/// The body of a 202.
#[derive(Debug, Serialize)]
struct Accepted<'a> {
    accepted: usize,
    ids: Vec<&'a str>,
}

/// Response bytes that own their memory reservation, which ends when they are written or the connection is closed.
struct ReservedBytes {
    bytes: Vec<u8>,
    _memory: Reservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// 202 with the task ids.
fn accepted(Receipts { ids, mut memory }: Receipts) -> Response<Body> {
    let body = Accepted { accepted: ids.len(), ids: ids.iter().map(TaskId::as_str).collect() };
    let bytes = serde_json::to_vec(&body).expect("ids are plain JSON");
    memory.shrink_to(bytes.capacity());
    let body = Bytes::from_owner(ReservedBytes { bytes, _memory: memory });
    let records = Extension(ConfirmedRecords(ids.len()));
    (StatusCode::ACCEPTED, records, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
