//! Handlers of the gateway's own API.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header, request::Parts},
    response::IntoResponse,
};
use garenne_protocol::{
    sensor::parse::Form,
    task::{NewTask, TaskId},
};
use garenne_publish::{Durability, READING_KIND};
use serde::Serialize;
use serde_json::value::RawValue;

use super::request::{self, ATOMIC, ConfirmedRecords, HttpRequest, LeftOutCodes, idempotency_key, text};
use crate::{
    cloud_event::EventFormat,
    context::GatewayContext,
    forward::{Forwarded, ForwardedTasks},
    ingest::{Format, Ingest, Parsed, Stored, now},
    left_out::LeftOut,
    memory::Reservation,
    payload::{Receipts, RecordCount},
    problem::Entry,
    readings_format::ReadingsFormat,
    record_tasks::RequestProperties,
    refusal::Refusal,
    request::handle,
};

/// `POST /v1/readings`.
pub(super) async fn readings(
    State(gateway): State<Arc<GatewayContext>>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let format = |head: &Parts, properties: &mut RequestProperties| {
        let form = Form::of(text(&head.headers, "content-type")?.unwrap_or_default())?;
        properties.idempotency_key = idempotency_key(head, &properties.caller)?;
        Ok(ReadingsFormat::Json(form))
    };
    handle(&gateway, HttpRequest::new(request, format, counted("http"))).await
}

/// `POST /v1/map/{name}`.
pub(super) async fn mapped(
    State(gateway): State<Arc<GatewayContext>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let format = |head: &Parts, properties: &mut RequestProperties| {
        let map = gateway.maps.get(&name)?;
        request::check_parameters(head, |name| {
            name == ATOMIC || map.parameters().any(|known| known == name)
        })?;
        properties.idempotency_key = idempotency_key(head, &properties.caller)?;
        Ok(ReadingsFormat::Mapped { map, path: head.uri.path().into() })
    };
    handle(&gateway, HttpRequest::new(request, format, counted("map")).with_own_parameters()).await
}

/// `POST /v1/tasks/{kind}`.
pub(super) async fn task(
    State(gateway): State<Arc<GatewayContext>>,
    Path(kind): Path<String>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let format = |head: &Parts, properties: &mut RequestProperties| {
        properties.idempotency_key = idempotency_key(head, &properties.caller)?;
        request::task(head, gateway.ingest.routes.kind(&kind)?, properties).map(TaskFormat)
    };
    handle(&gateway, HttpRequest::new(request, format, all_accepted)).await
}

/// `POST /v1/tasks`.
pub(super) async fn forwarded(
    State(gateway): State<Arc<GatewayContext>>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let format = |_: &Parts, properties: &mut RequestProperties| match properties.caller.may_forward() {
        true => Ok(ForwardedTasks),
        false => Err(Refusal::may_not_forward(&properties.caller.name)),
    };
    let answer = |_: &GatewayContext, stored: Result<Stored<_>, Refusal>| {
        let (Receipts { ids, .. }, rejected) = stored?;
        let records = Extension(ConfirmedRecords(ids.len()));
        let forwarded = Json(Forwarded { accepted: ids.len(), rejected });
        Ok((StatusCode::ACCEPTED, records, forwarded).into_response())
    };
    handle(&gateway, HttpRequest::new(request, format, answer)).await
}

/// `POST /v1/events`.
pub(super) async fn events(
    State(gateway): State<Arc<GatewayContext>>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let format = |head: &Parts, _: &mut RequestProperties| EventFormat::of(&head.headers);
    handle(&gateway, HttpRequest::new(request, format, all_accepted)).await
}

/// The payload of this task.
struct TaskFormat(NewTask);

impl Format for TaskFormat {
    type Notes = ();

    fn count(&self, _: &RequestProperties) -> RecordCount {
        // Its readings are parsed to check them.
        if self.0.kind.as_str() == READING_KIND { RecordCount::Mark(b'{') } else { RecordCount::One }
    }

    fn parse(
        self,
        body: Vec<u8>,
        request: &RequestProperties,
        ingest: &Ingest,
    ) -> Result<Parsed<()>, Refusal> {
        let Self(task) = self;
        // A body that no worker could parse is refused here, where the sender gets the error.
        serde_json::from_slice::<&RawValue>(&body).map_err(Refusal::malformed_body)?;
        let records = ingest.allow_task(&task, &body, &request.caller)?;
        let keys = request.keys(task.kind.as_str(), &body, now());
        Ok(Parsed { keys, ..Parsed::tasks(vec![NewTask { body, ..task }], records, ()) })
    }
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
    door: &'static str,
) -> impl FnOnce(&GatewayContext, Result<Stored<LeftOut>, Refusal>) -> Result<Response<Body>, Refusal> {
    move |gateway, stored| match stored {
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

fn all_accepted(_: &GatewayContext, stored: Result<Stored<()>, Refusal>) -> Result<Response<Body>, Refusal> {
    stored.map(|(receipts, ())| accepted(receipts, &LeftOut::default()))
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
