//! Handlers of the gateway's own API.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::{Path, Request, State},
    http::{Response, header},
    response::IntoResponse,
};

use super::{
    body,
    request::{caller_of, task_options, text, trace_of},
    response::accepted,
};
use crate::{
    context::GatewayContext,
    ingest::{Sender, TaskOptions},
    refusal::Refusal,
};

/// `POST /v1/readings`.
pub(super) async fn readings(
    State(gateway): State<Arc<GatewayContext>>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let (head, body) = request.into_parts();
    let caller = caller_of(&gateway, head.extensions.get(), &head.headers, None)?;
    let idempotency_key = text(&head.headers, "idempotency-key")?.map(str::to_owned);
    let content_type = text(&head.headers, "content-type")?.unwrap_or("");
    let body = body::read(body, &head.headers, &gateway, gateway.limits.max_body).await?;
    let sender = Sender { caller, idempotency_key, trace: trace_of(&head) };
    gateway.ingest.ingest_readings(content_type, body, sender).await.map(accepted)
}

/// `POST /v1/tasks/{kind}`.
pub(super) async fn task(
    State(gateway): State<Arc<GatewayContext>>,
    Path(kind): Path<String>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let (head, body) = request.into_parts();
    let caller = caller_of(&gateway, head.extensions.get(), &head.headers, None)?;
    let kind = gateway.ingest.kind(&kind)?;
    let options = TaskOptions { trace: trace_of(&head), ..task_options(&head.headers)? };
    let body = body::read(body, &head.headers, &gateway, gateway.limits.max_body).await?;
    gateway.ingest.ingest_task(kind, body, &caller, options).await.map(accepted)
}

/// `GET /openapi.json`.
pub(super) fn openapi(description: Bytes) -> Response<Body> {
    ([(header::CONTENT_TYPE, "application/json")], description).into_response()
}
