//! The HTTP side: the API's routes and one connection's service.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{MatchedPath, Path, Request, State},
    http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request},
    middleware::{Next, from_fn_with_state},
    response::IntoResponse,
    routing::{get, post},
};
use base64::Engine;
use garenne_common::telemetry::traces::{Begun, Span, SpanKind};
use garenne_protocol::task::{ContentType, Envelope, TaskId, TraceContext};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{
    accept::Parts,
    audit,
    auth::{Caller, Peer},
    ingest::{Sender, TaskOptions},
    memory::Reservation,
    openapi,
    payload::Receipts,
    problem::RefusalCode,
    refusal::{Refusal, quoted},
    unread::Unread,
};

mod body;
mod influx;

/// The largest head of a request, and the largest piece of a body that is read at once.
const LARGEST_HEAD: usize = 16 * 1024;

/// The API over the gateway's parts.
pub(super) fn router(parts: Arc<Parts>) -> Router {
    let description = Bytes::from(openapi::document(parts.ingest.bindings()).to_string());
    Router::new()
        .route("/v1/readings", post(readings))
        .route("/v1/tasks/{kind}", post(task))
        .route("/openapi.json", get(|| async move { described(description) }))
        .route("/api/v2/write", post(influx::write))
        .route("/write", post(influx::write))
        .route("/query", get(influx::query).post(influx::query))
        .route("/ping", get(influx::ping))
        .route("/health", get(influx::health))
        .layer(from_fn_with_state(Arc::clone(&parts), count))
        .with_state(parts)
}

/// Serves one connection until it ends, or until the request under way is answered after `stop`.
pub(super) async fn serve<S>(
    stream: S,
    router: Router,
    parts: &Parts,
    peer: &Peer,
    stop: &CancellationToken,
) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Without `pipeline_flush`: it gathers answers for as long as requests come, and writes none meanwhile.
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(parts.limits.header_timeout).max_buf_size(LARGEST_HEAD);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        router.clone().oneshot(request)
    });
    let stream = Unread::new(stream, parts.limits.write_timeout).lingering(peer.refused());
    let connection = http.serve_connection(TokioIo::new(stream), service);
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

/// The answer's bytes own the reservation: it ends when they are written or the connection is gone.
struct Reserved {
    bytes: Vec<u8>,
    _memory: Reservation,
}

impl AsRef<[u8]> for Reserved {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn accepted(Receipts { ids, mut memory }: Receipts) -> Response<Body> {
    let body = Accepted { accepted: ids.len(), ids: ids.iter().map(TaskId::as_str).collect() };
    let bytes = serde_json::to_vec(&body).expect("ids are plain JSON");
    memory.shrink_to(bytes.capacity());
    let mut response = Response::new(Body::from(Bytes::from_owner(Reserved { bytes, _memory: memory })));
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
    let caller = caller_of(&parts, head.extensions.get(), &head.headers, None)?;
    let idempotency_key = text(&head.headers, "idempotency-key")?.map(str::to_owned);
    let content_type = text(&head.headers, "content-type")?.unwrap_or("");
    let body = body::read(body, &head.headers, &parts, parts.limits.max_body).await?;
    let sender = Sender { caller, idempotency_key, trace: trace_of(&head) };
    parts.ingest.readings(content_type, body, sender).await.map(accepted)
}

async fn task(
    State(parts): State<Arc<Parts>>,
    Path(kind): Path<String>,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let (head, body) = request.into_parts();
    let caller = caller_of(&parts, head.extensions.get(), &head.headers, None)?;
    let kind = parts.ingest.kind(&kind)?;
    let options = TaskOptions { trace: trace_of(&head), ..task_options(&head.headers)? };
    let body = body::read(body, &head.headers, &parts, parts.limits.max_body).await?;
    parts.ingest.task(kind, body, &caller, options).await.map(accepted)
}

/// Who sent a request. The token is a bearer's, InfluxDB's `Token`, or a password of either API's
/// version 1, in the header or in the query.
fn caller_of(
    parts: &Parts,
    peer: Option<&Peer>,
    headers: &HeaderMap,
    password: Option<&str>,
) -> Result<Caller, Refusal> {
    let peer = peer.ok_or(Refusal::Unauthorized("the peer is not known"))?;
    let given = text(headers, "authorization")?.and_then(|value| value.split_once(' '));
    let basic;
    let token = match given {
        Some((scheme, token))
            if scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("token") =>
        {
            Some(token.trim())
        }
        Some((scheme, credentials)) if scheme.eq_ignore_ascii_case("basic") => {
            basic = base64::prelude::BASE64_STANDARD.decode(credentials.trim()).unwrap_or_default();
            str::from_utf8(&basic).ok().and_then(|pair| pair.split_once(':')).map(|(_, password)| password)
        }
        _ => password,
    };
    parts.access.caller(peer, token)
}

fn described(description: Bytes) -> Response<Body> {
    ([(header::CONTENT_TYPE, "application/json")], description).into_response()
}

/// Counts every answer, those of the router itself included, and leaves a line for each refusal.
async fn count(State(parts): State<Arc<Parts>>, mut request: Request, next: Next) -> Response<Body> {
    let protocol = match request.uri().path() {
        "/api/v2/write" | "/write" | "/query" | "/ping" | "/health" => "influx",
        _ => "http",
    };
    let peer = request.extensions().get::<Peer>().cloned();
    let sent = trace(request.headers());
    let Begun { context, mut span } = match request.method() {
        &Method::POST => parts.traces.begin(sent.as_ref(), SpanKind::Server, |span| describe(span, &request)),
        _ => Begun { context: sent, span: None },
    };
    if let Some(context) = &context {
        request.extensions_mut().insert(context.clone());
    }
    let response = next.run(request).await;
    let records = response.extensions().get::<Receipted>().map_or(0, |receipted| receipted.0);
    parts.instruments.answered(protocol, response.status().as_str(), records);
    if let (Some(RefusalCode(code)), Some(peer)) = (response.extensions().get(), peer) {
        // Its body may be unread: the answer must reach the sender all the same.
        peer.refused().store(true, Ordering::Relaxed);
        audit(&peer, protocol, code, context.as_ref());
        if let Some(span) = &mut span {
            span.set("error.type", *code);
        }
    }
    if let Some(mut span) = span {
        let status = response.status();
        span.set("http.response.status_code", i64::from(status.as_u16()));
        span.set("garenne.records", i64::try_from(records).unwrap_or(i64::MAX));
        if status.is_server_error() {
            span.failed(status.canonical_reason().unwrap_or_default());
        }
    }
    response
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

/// What the span of a request says of it.
fn describe(span: &mut Span, request: &Request) {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    span.name(format!("{} {route}", request.method()).trim_end().to_owned());
    span.set("http.request.method", request.method().to_string());
    span.set("http.route", route.to_owned());
    span.set("url.path", request.uri().path().to_owned());
    if let Some(peer) = request.extensions().get::<Peer>() {
        span.set("client.address", peer.address.ip().to_string());
    }
}

/// The trace that the sender is in.
fn trace(headers: &HeaderMap) -> Option<TraceContext> {
    let parent = headers.get("traceparent")?.to_str().ok()?;
    TraceContext::parse(parent, headers.get("tracestate").and_then(|state| state.to_str().ok()))
}

/// The trace that a request's tasks go on with.
fn trace_of(head: &request::Parts) -> Option<TraceContext> {
    head.extensions.get().cloned()
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
    Ok(TaskOptions {
        id: text(headers, "idempotency-key")?.map(str::to_owned),
        content_type,
        group: name(headers, "garenne-group")?,
        key: name(headers, "garenne-key")?,
        delay: milliseconds(headers, "garenne-delay-ms")?,
        timeout: milliseconds(headers, "garenne-timeout-ms")?,
        trace: None,
    })
}

fn name(headers: &HeaderMap, field: &'static str) -> Result<Option<String>, Refusal> {
    let name = text(headers, field)?.map(str::to_owned);
    if name.as_ref().is_some_and(|name| name.is_empty() || name.len() > Envelope::MAX_TEXT) {
        let problem = format!("expected 1 to {} bytes", Envelope::MAX_TEXT);
        return Err(Refusal::Field { field, problem });
    }
    Ok(name)
}

fn milliseconds(headers: &HeaderMap, name: &'static str) -> Result<Option<Duration>, Refusal> {
    text(headers, name)?
        .map(|value| {
            let parsed = value.trim().parse::<i64>().ok().filter(|ms| (0..=Envelope::MAX_MS).contains(ms));
            parsed.map(|ms| Duration::from_millis(ms.unsigned_abs())).ok_or_else(|| Refusal::Field {
                field: name,
                problem: format!(
                    "{} is no whole number of milliseconds from 0 to {}",
                    quoted(value),
                    Envelope::MAX_MS
                ),
            })
        })
        .transpose()
}
