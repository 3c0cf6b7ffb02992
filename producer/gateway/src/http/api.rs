//! Handlers of the gateway's own API.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use garenne_protocol::{sensor::parse::Form, task::TaskId};
use serde::Serialize;

use super::request::{Authenticated, ConfirmedRecords, LeftOutCodes, text};
use crate::{
    cloud_event::EventFormat, context::GatewayContext, left_out::LeftOut, memory::Reservation,
    payload::Receipts, problem::Entry, readings_format::ReadingsFormat, refusal::Refusal,
    task_publisher::Durability,
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
    let sent = gateway.ingest.ingest_readings(format, body, request.into_sender(idempotency_key)).await;
    counted(&gateway, "http", sent)
}

/// `POST /v1/map/{name}`.
pub(super) async fn mapped(
    State(gateway): State<Arc<GatewayContext>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let mut request = Authenticated::new(&gateway, request, None)?;
    let map = gateway.maps.get(&name)?;
    let format = ReadingsFormat::Mapped { map, path: request.head.uri.path().into() };
    let idempotency_key = request.idempotency_key()?;
    let body = request.read_body(&gateway, gateway.limits.max_body).await?;
    let sent = gateway.ingest.ingest_readings(format, body, request.into_sender(idempotency_key)).await;
    counted(&gateway, "map", sent)
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
    gateway.ingest.ingest_task(task, body, request.into_sender(idempotency_key)).await.map(all_accepted)
}

/// `POST /v1/tasks`.
pub(super) async fn forwarded(
    State(gateway): State<Arc<GatewayContext>>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let mut request = Authenticated::new(&gateway, request, None)?;
    if !request.caller.may_forward() {
        return Err(Refusal::may_not_forward(&request.caller.name));
    }
    let body = request.read_body(&gateway, gateway.limits.max_body).await?;
    let forwarded = gateway.ingest.ingest_forwarded(body, request.into_sender(None)).await?;
    let records = Extension(ConfirmedRecords(forwarded.accepted));
    Ok((StatusCode::ACCEPTED, records, Json(forwarded)).into_response())
}

/// `POST /v1/events`.
pub(super) async fn events(
    State(gateway): State<Arc<GatewayContext>>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let mut request = Authenticated::new(&gateway, request, None)?;
    let format = EventFormat::of(&request.head.headers)?;
    let body = request.read_body(&gateway, gateway.limits.max_body).await?;
    gateway.ingest.ingest_events(format, body, request.into_sender(None)).await.map(all_accepted)
}

/// The body of a 202.
#[derive(Debug, Serialize)]
struct Accepted<'a> {
    accepted: usize,
    ids: Vec<Option<&'a str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<Entry<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<Entry<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<&'static str>,
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

/// The value of the field and the header that mark an answer from the spool.
const SPOOLED: &str = "spooled";

/// The header of an answer whose records are in the spool. Without it they are confirmed by the broker.
pub(super) fn durability_header(durability: Durability) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if durability == Durability::Spooled {
        headers.insert("garenne-durability", HeaderValue::from_static(SPOOLED));
    }
    headers
}

/// Counts what is left out of a request, and answers it.
fn counted(
    gateway: &GatewayContext,
    door: &'static str,
    sent: Result<(Receipts, LeftOut), Refusal>,
) -> Result<Response<Body>, Refusal> {
    match sent {
        Ok((receipts, left_out)) => {
            gateway.instruments.left_out(door, left_out.all());
            Ok(accepted(receipts, &left_out))
        }
        Err(refusal) => {
            gateway.instruments.refused_records(door, &refusal);
            Err(refusal)
        }
    }
}

fn all_accepted(receipts: Receipts) -> Response<Body> {
    accepted(receipts, &LeftOut::default())
}

/// 202 with the task ids by position.
fn accepted(Receipts { ids, durability, mut memory }: Receipts, left_out: &LeftOut) -> Response<Body> {
    let mark = (durability == Durability::Spooled).then_some(SPOOLED);
    let body = Accepted {
        accepted: ids.len(),
        ids: left_out.by_position(&ids).map(|id| id.map(TaskId::as_str)).collect(),
        refused: Entry::all(&left_out.refused),
        notes: Entry::all(&left_out.notes),
        durability: mark,
    };
    let bytes = serde_json::to_vec(&body).expect("ids are plain JSON");
    memory.shrink_to(bytes.capacity());
    let body = Bytes::from_owner(ReservedBytes { bytes, _memory: memory });
    let records = Extension(ConfirmedRecords(ids.len()));
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    let mut response =
        (StatusCode::ACCEPTED, records, content_type, durability_header(durability), body).into_response();
    response.extensions_mut().insert(LeftOutCodes(left_out.codes()));
    response
}
