//! The part of InfluxDB's API that writers need: `/api/v2/write`, `/write`, `/ping`, `/health` and
//! the `CREATE DATABASE` that old writers begin with.

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
    response::Receipted,
};
use crate::{
    auth::Peer,
    influx::Precision,
    ingest::Sender,
    parts::Parts,
    refusal::{Refusal, quoted},
};

/// What both versions of the API may say in the query; databases, buckets and the like are taken and
/// mean nothing here.
#[derive(Debug, Default, Deserialize)]
pub(super) struct WriteQuery {
    precision: Option<String>,
    /// Version 1 carries its password here.
    p: Option<String>,
}

/// Readings in line protocol: 204 once all of them are safe.
pub(super) async fn write(
    State(parts): State<Arc<Parts>>,
    Query(query): Query<WriteQuery>,
    request: Request,
) -> Response<Body> {
    match take(&parts, &query, request).await {
        Ok(records) => {
            let mut response = StatusCode::NO_CONTENT.into_response();
            response.extensions_mut().insert(Receipted(records));
            response
        }
        Err(refusal) => refuse(refusal),
    }
}

async fn take(parts: &Parts, query: &WriteQuery, request: Request) -> Result<usize, Refusal> {
    let (head, body) = request.into_parts();
    let peer = head.extensions.get::<Peer>();
    let caller = caller_of(parts, peer, &head.headers, query.p.as_deref())?;
    let Some(precision) = Precision::parse(query.precision.as_deref()) else {
        let given = quoted(query.precision.as_deref().unwrap_or_default());
        let problem = format!("{given} is none of ns, us, ms, s, m and h");
        return Err(Refusal::Field { field: "precision", problem });
    };
    let body = body::read(body, &head.headers, parts, parts.limits.max_body).await?;
    let sender = Sender { caller, idempotency_key: None, trace: trace_of(&head) };
    parts.ingest.lines(precision, body, sender).await.map(|receipts| receipts.ids.len())
}

/// A refusal in the words of both versions: `message` for one, `error` for the other.
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
    // 422 is none of InfluxDB's: a writer gives a batch up at a 400 and keeps it otherwise.
    let status = if refusal.status() == 422 { 400 } else { refusal.status() };
    let body = json!({ "code": code, "message": message, "error": message });
    let mut response = refusal.into_response();
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    response.headers_mut().remove("content-length");
    *response.body_mut() = Body::from(body.to_string());
    response
}

/// What writers look for before they write.
pub(super) async fn ping() -> impl IntoResponse {
    let mut headers = HeaderMap::new();
    // Writers choose their dialect by it; 2.x takes both.
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

/// The largest statement.
const LARGEST_STATEMENT: Size = Size::kib(16);

#[derive(Debug, Default, Deserialize)]
pub(super) struct Statement {
    q: Option<String>,
    /// Version 1 carries its password here.
    p: Option<String>,
}

/// There are no databases here to create, so that creating one is done.
pub(super) async fn query(
    State(parts): State<Arc<Parts>>,
    Query(in_url): Query<Statement>,
    request: Request,
) -> Response<Body> {
    let statement = match statement(&parts, in_url, request).await {
        Ok(statement) => statement,
        Err(refusal) => return refuse(refusal),
    };
    let mut words = statement.split_whitespace().map(str::to_ascii_uppercase);
    if (words.next().as_deref(), words.next().as_deref()) == (Some("CREATE"), Some("DATABASE")) {
        return Json(json!({ "results": [{ "statement_id": 0 }] })).into_response();
    }
    let error = "only CREATE DATABASE is understood: this is a gateway and holds no data";
    (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response()
}

async fn statement(parts: &Parts, in_url: Statement, request: Request) -> Result<String, Refusal> {
    let (head, body) = request.into_parts();
    caller_of(parts, head.extensions.get::<Peer>(), &head.headers, in_url.p.as_deref())?;
    if let Some(statement) = in_url.q {
        return Ok(statement);
    }
    let body = body::read(body, &head.headers, parts, LARGEST_STATEMENT).await?;
    let (body, _memory) = body.small(LARGEST_STATEMENT)?;
    Ok(serde_urlencoded::from_bytes::<Statement>(&body).ok().and_then(|form| form.q).unwrap_or_default())
}
