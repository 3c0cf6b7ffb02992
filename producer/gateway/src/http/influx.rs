//! The endpoints of InfluxDB's API that writers use: `/api/v2/write`, `/write`, `/ping`, `/health`, and `/query` for
//! the `CREATE DATABASE` that version 1 writers send first.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::Body,
    extract::{Query, Request, State},
    http::{Response, StatusCode, request::Parts},
    response::IntoResponse,
};
use garenne_common::config::Size;
use serde::Deserialize;
use serde_json::json;

use super::{
    api::durability_header,
    request::{
        ConfirmedRecords, HttpRequest, LeftOutCodes, authenticate, check_parameters, idempotency_key,
        read_body,
    },
};
use crate::{
    context::GatewayContext,
    dropped_lines::{DroppedLines, LineBody},
    influx::Precision,
    ingest::Stored,
    problem::Entry,
    record_tasks::RequestProperties,
    refusal::Refusal,
    request::handle,
};

/// The query parameters that writers of both versions send. Those that have no meaning here are ignored.
const OF_WRITES: &[&str] = &["db", "rp", "precision", "consistency", "u", "p", "org", "orgID", "bucket"];

/// The query parameters of statements.
const OF_QUERIES: &[&str] =
    &["q", "db", "rp", "u", "p", "epoch", "pretty", "chunked", "chunk_size", "params", "async", "node_id"];

/// The query parameters that are read.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Parameters {
    /// The unit of a write's timestamps.
    precision: Option<String>,
    /// The statement of a query.
    q: Option<String>,
    /// The password in version 1.
    p: Option<String>,
}

/// Publishes readings in line protocol. 204 after the broker has confirmed all of them; 400, as InfluxDB answers, after it
/// has confirmed those that are not dropped.
pub(super) async fn write(
    State(gateway): State<Arc<GatewayContext>>,
    Query(Parameters { precision, p, .. }): Query<Parameters>,
    request: Request,
) -> Result<Response<Body>, InfluxRefusal> {
    let format = |head: &Parts, properties: &mut RequestProperties| {
        properties.idempotency_key = idempotency_key(head, &properties.caller)?;
        let given = precision.as_deref();
        let unknown = || Refusal::precision(given.unwrap_or_default());
        Precision::parse(given).map(LineBody).ok_or_else(unknown)
    };
    let request = HttpRequest::new(request, format, written);
    Ok(handle(&gateway, request.with_password(p).with_parameters(OF_WRITES)).await?)
}

fn written(
    gateway: &GatewayContext,
    stored: Result<Stored<DroppedLines>, Refusal>,
) -> Result<Response<Body>, Refusal> {
    let (receipts, dropped) =
        stored.inspect_err(|refusal| gateway.instruments.refused_records("influx", refusal))?;
    let records = Extension(ConfirmedRecords(receipts.ids.len()));
    let durability = durability_header(receipts.durability);
    if dropped.is_empty() {
        return Ok((StatusCode::NO_CONTENT, records, durability).into_response());
    }
    for (code, count) in &dropped.counts {
        gateway.instruments.rejected("influx", code, *count);
    }
    let codes = Extension(LeftOutCodes(dropped.counts.keys().copied().collect()));
    let message = dropped.message();
    let refused = Entry::all(&dropped.named);
    let body = json!({ "code": "invalid", "message": message, "error": message, "refused": refused });
    Ok((StatusCode::BAD_REQUEST, records, codes, durability, Json(body)).into_response())
}

/// A refusal in the format of both versions: version 2 reads `message`, version 1 reads `error`.
pub(super) struct InfluxRefusal(Refusal);

impl From<Refusal> for InfluxRefusal {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl IntoResponse for InfluxRefusal {
    fn into_response(self) -> Response<Body> {
        let Self(refusal) = self;
        // InfluxDB does not use 422: writers drop a batch after a 400 and retry it after other codes.
        let (status, code) = match refusal.status {
            StatusCode::UNPROCESSABLE_ENTITY => (StatusCode::BAD_REQUEST, "invalid"),
            status @ StatusCode::UNAUTHORIZED => (status, "unauthorized"),
            status @ StatusCode::FORBIDDEN => (status, "forbidden"),
            status @ StatusCode::PAYLOAD_TOO_LARGE => (status, "request too large"),
            status @ StatusCode::TOO_MANY_REQUESTS => (status, "too many requests"),
            status @ StatusCode::SERVICE_UNAVAILABLE => (status, "unavailable"),
            status => (status, "invalid"),
        };
        let mut body = json!({ "code": code, "message": refusal.message, "error": refusal.message });
        if !refusal.refused.is_empty() {
            body["refused"] = json!(Entry::all(&refusal.refused));
        }
        refusal.response(status, "application/json", body.to_string())
    }
}

/// Writers call it before they write.
pub(super) async fn ping() -> impl IntoResponse {
    // Writers choose the API version by the first header; 2.x has both.
    let headers = [("x-influxdb-version", "2.7.0-garenne"), ("x-influxdb-build", "Garenne")];
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

/// Answers `CREATE DATABASE` with success, since there is no database to create, and refuses other statements.
pub(super) async fn query(
    State(gateway): State<Arc<GatewayContext>>,
    Query(Parameters { q, p, .. }): Query<Parameters>,
    request: Request,
) -> Result<Response<Body>, InfluxRefusal> {
    let (head, mut body) = request.into_parts();
    authenticate(&gateway, &head, p.as_deref())?;
    check_parameters(&head, |name| OF_QUERIES.contains(&name))?;
    let statement = match q {
        Some(statement) => statement,
        None => {
            let body = read_body(&gateway, &head, &mut body, MAX_STATEMENT).await?;
            let (form, _memory) = body.small(MAX_STATEMENT)?;
            let form = serde_urlencoded::from_bytes::<Parameters>(&form);
            form.ok().and_then(|form| form.q).unwrap_or_default()
        }
    };
    let mut words = statement.split_whitespace().map(str::to_ascii_uppercase);
    if (words.next().as_deref(), words.next().as_deref()) == (Some("CREATE"), Some("DATABASE")) {
        return Ok(Json(json!({ "results": [{ "statement_id": 0 }] })).into_response());
    }
    let error = "only CREATE DATABASE is supported: the gateway stores no data";
    Ok((StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response())
}
