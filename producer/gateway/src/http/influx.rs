//! The endpoints of InfluxDB's API that writers use: `/api/v2/write`, `/write`, `/ping`, `/health`, and `/query` for
//! the `CREATE DATABASE` that version 1 writers send first.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Query, Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode},
    response::IntoResponse,
};
use garenne_common::config::Size;
use serde::Deserialize;
use serde_json::json;

use super::{
    body,
    request::{caller_of, trace_of},
    response::ConfirmedRecords,
};
use crate::{
    auth::Peer,
    context::GatewayContext,
    influx::Precision,
    ingest::Sender,
    refusal::{Refusal, quoted},
};

/// The query parameters of a write in both versions of the API. Others, such as `db` and `bucket`, are ignored.
#[derive(Debug, Default, Deserialize)]
pub(super) struct WriteQuery {
    precision: Option<String>,
    /// The password in version 1.
    p: Option<String>,
}

/// Publishes readings in line protocol. 204 after the broker has confirmed all of them.
pub(super) async fn write(
    State(gateway): State<Arc<GatewayContext>>,
    Query(query): Query<WriteQuery>,
    request: Request,
) -> Response<Body> {
    match ingest(&gateway, &query, request).await {
        Ok(records) => {
            let mut response = StatusCode::NO_CONTENT.into_response();
            response.extensions_mut().insert(ConfirmedRecords(records));
            response
        }
        Err(refusal) => refuse(refusal),
    }
}

async fn ingest(gateway: &GatewayContext, query: &WriteQuery, request: Request) -> Result<usize, Refusal> {
    let (head, body) = request.into_parts();
    let peer = head.extensions.get::<Peer>();
    let caller = caller_of(gateway, peer, &head.headers, query.p.as_deref())?;
    let Some(precision) = Precision::parse(query.precision.as_deref()) else {
        let given = quoted(query.precision.as_deref().unwrap_or_default());
        let problem = format!("{given} is unknown, expected ns, us, ms, s, m or h");
        return Err(Refusal::Field { field: "precision", problem });
    };
    let body = body::read(body, &head.headers, gateway, gateway.limits.max_body).await?;
    let sender = Sender { caller, idempotency_key: None, trace: trace_of(&head) };
    gateway.ingest.ingest_line_protocol(precision, body, sender).await.map(|receipts| receipts.ids.len())
}

/// A refusal in the format of both versions: version 2 reads `message`, version 1 reads `error`.
fn refuse(refusal: Refusal) -> Response<Body> {
    let code = match refusal.status() {
        401 => "unauthorized",
        403 => "forbidden",
        413 => "request too large",
        429 => "too many requests",
        503 => "unavailable",
        _ => "invalid",
    };
    let message = refusal.to_string();
    // InfluxDB does not use 422: writers drop a batch after a 400 and retry it after other codes.
    let status = if refusal.status() == 422 { 400 } else { refusal.status() };
    let body = json!({ "code": code, "message": message, "error": message });
    let mut response = refusal.into_response();
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    response.headers_mut().remove("content-length");
    *response.body_mut() = Body::from(body.to_string());
    response
}

/// Writers call it before they write.
pub(super) async fn ping() -> impl IntoResponse {
    let mut headers = HeaderMap::new();
    // Writers choose the API version by this header; 2.x has both.
    headers.insert("x-influxdb-version", HeaderValue::from_static("2.7.0-garenne"));
    headers.insert("x-influxdb-build", HeaderValue::from_static("Garenne"));
    (StatusCode::NO_CONTENT, headers)
}

pub(super) async fn health() -> impl IntoResponse {
    Json(json!({
        "name": "garenne",
        "status": "pass",
        "message": "ready for writes",
        "version": env!("CARGO_PKG_VERSION")
    }))
}

/// Largest statement.
const MAX_STATEMENT: Size = Size::kib(16);

#[derive(Debug, Default, Deserialize)]
pub(super) struct Statement {
    q: Option<String>,
    /// The password in version 1.
    p: Option<String>,
}

/// Answers `CREATE DATABASE` with success, since there is no database to create, and refuses other statements.
pub(super) async fn query(
    State(gateway): State<Arc<GatewayContext>>,
    Query(in_url): Query<Statement>,
    request: Request,
) -> Response<Body> {
    let statement = match statement(&gateway, in_url, request).await {
        Ok(statement) => statement,
        Err(refusal) => return refuse(refusal),
    };
    let mut words = statement.split_whitespace().map(str::to_ascii_uppercase);
    if (words.next().as_deref(), words.next().as_deref()) == (Some("CREATE"), Some("DATABASE")) {
        return Json(json!({ "results": [{ "statement_id": 0 }] })).into_response();
    }
    let error = "only CREATE DATABASE is supported: the gateway stores no data";
    (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response()
}

async fn statement(gateway: &GatewayContext, in_url: Statement, request: Request) -> Result<String, Refusal> {
    let (head, body) = request.into_parts();
    caller_of(gateway, head.extensions.get::<Peer>(), &head.headers, in_url.p.as_deref())?;
    if let Some(statement) = in_url.q {
        return Ok(statement);
    }
    let body = body::read(body, &head.headers, gateway, MAX_STATEMENT).await?;
    let (body, _memory) = body.small(MAX_STATEMENT)?;
    Ok(serde_urlencoded::from_bytes::<Statement>(&body).ok().and_then(|form| form.q).unwrap_or_default())
}
