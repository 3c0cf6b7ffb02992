//! The HTTP side: the API's routes and one connection's service.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::IntoResponse,
    routing::{get, post},
};
use garenne_common::task::{ContentType, Envelope, TaskId};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use serde::Serialize;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{accept::Parts, ingest::TaskOptions, openapi, refusal::Refusal};

/// The API over the gateway's parts.
pub(super) fn router(parts: Arc<Parts>) -> Router {
    Router::new()
        .route("/v1/readings", post(readings))
        .route("/v1/tasks/{kind}", post(task))
        .route("/openapi.json", get(openapi_json))
        .layer(from_fn_with_state(Arc::clone(&parts), count))
        .with_state(parts)
}

/// Serves one connection until it ends, or until the request under way is answered after `stop`.
pub(super) async fn serve<S>(
    stream: S,
    router: Router,
    parts: &Parts,
    stop: &CancellationToken,
) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(parts.limits.header_timeout)
        .max_buf_size(64 * 1024)
        .pipeline_flush(true);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

/// What a 202 says.
#[derive(Debug, Serialize)]
struct Accepted<'a> {
    accepted: usize,
    ids: Vec<&'a str>,
}

fn accepted(ids: &[TaskId]) -> Response<Body> {
    let body = Accepted { accepted: ids.len(), ids: ids.iter().map(TaskId::as_str).collect() };
    let body = serde_json::to_vec(&body).expect("ids are plain JSON");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::ACCEPTED;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.extensions_mut().insert(Receipted(ids.len()));
    response
}

/// How many records a response receipts, for the counters.
#[derive(Clone, Copy)]
struct Receipted(usize);

async fn readings(State(parts): State<Arc<Parts>>, request: Request) -> Result<Response<Body>, Refusal> {
    let (head, body) = request.into_parts();
    let body = read_body(body, &head.headers, &parts).await?;
    let key = text(&head.headers, "idempotency-key")?;
    let content_type = text(&head.headers, "content-type")?.unwrap_or("");
    let ids = parts.ingest.readings(content_type, &body, key, trace(&head.headers)).await?;
    Ok(accepted(&ids))
}

async fn task(
    State(parts): State<Arc<Parts>>,
    Path(kind): Path<String>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let (head, body) = request.into_parts();
    let options = task_options(&head.headers)?;
    let body = read_body(body, &head.headers, &parts).await?;
    let ids = parts.ingest.task(&kind, &body, options).await?;
    Ok(accepted(&ids))
}

async fn openapi_json() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], openapi::text())
}

/// Counts every answer, those of the router itself included.
async fn count(State(parts): State<Arc<Parts>>, request: Request, next: Next) -> Response<Body> {
    let response = next.run(request).await;
    let records = response.extensions().get::<Receipted>().map_or(0, |receipted| receipted.0);
    parts.instruments.answered("http", response.status().as_str(), records);
    response
}

/// The body, bounded in bytes and in time.
async fn read_body(body: Body, headers: &HeaderMap, parts: &Parts) -> Result<Bytes, Refusal> {
    let limits = &parts.limits;
    let too_large = || Refusal::TooLarge { what: "body", limit: limits.max_body };
    let announced = text(headers, "content-length")?.and_then(|length| length.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limits.max_body.0) {
        return Err(too_large());
    }
    match text(headers, "content-encoding")? {
        None | Some("" | "identity") => {}
        Some(other) => return Err(Refusal::Encoding(other.to_owned())),
    }
    let collecting = Limited::new(body, limits.max_body.bytes()).collect();
    match timeout(limits.body_timeout, collecting).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Refusal::NotJson(format!("cut off: {error}"))),
        Err(_) => Err(Refusal::Timeout { what: "body", limit: limits.body_timeout }),
    }
}

/// A header as text; one that is not UTF-8 is the sender's mistake.
fn text<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, Refusal> {
    headers
        .get(name)
        .map(|value| {
            value
                .to_str()
                .map_err(|_| Refusal::Field { field: name, problem: "it is not visible ASCII".to_owned() })
        })
        .transpose()
}

/// W3C trace context of the request; a malformed one is as good as none.
fn trace(headers: &HeaderMap) -> Option<(String, Option<String>)> {
    let parent = headers.get("traceparent")?.to_str().ok()?;
    let state = headers.get("tracestate").and_then(|state| state.to_str().ok()).map(str::to_owned);
    Some((parent.to_owned(), state))
}

fn task_options(headers: &HeaderMap) -> Result<TaskOptions, Refusal> {
    let content_type = match text(headers, "content-type")? {
        None => ContentType::Json,
        Some(given) => {
            let media = given.split(';').next().unwrap_or_default().trim();
            if media.eq_ignore_ascii_case("application/json") {
                ContentType::Json
            } else if media.eq_ignore_ascii_case("application/senml+json") {
                ContentType::SenmlJson
            } else {
                return Err(Refusal::Media(given.to_owned()));
            }
        }
    };
    let group = text(headers, "garenne-group")?.map(str::to_owned);
    if group.as_ref().is_some_and(|group| group.is_empty() || group.len() > Envelope::MAX_TEXT) {
        let problem = format!("expected 1 to {} bytes", Envelope::MAX_TEXT);
        return Err(Refusal::Field { field: "garenne-group", problem });
    }
    Ok(TaskOptions {
        id: text(headers, "idempotency-key")?.map(str::to_owned),
        content_type,
        group,
        delay: milliseconds(headers, "garenne-delay-ms")?,
        timeout: milliseconds(headers, "garenne-timeout-ms")?,
        trace: trace(headers),
    })
}

fn milliseconds(headers: &HeaderMap, name: &'static str) -> Result<Option<Duration>, Refusal> {
    text(headers, name)?
        .map(|value| {
            let parsed = value.trim().parse::<i64>().ok().filter(|ms| (0..=Envelope::MAX_MS).contains(ms));
            parsed.map(|ms| Duration::from_millis(ms.unsigned_abs())).ok_or_else(|| Refusal::Field {
                field: name,
                problem: format!(
                    "{value:?} is no whole number of milliseconds from 0 to {}",
                    Envelope::MAX_MS
                ),
            })
        })
        .transpose()
}
