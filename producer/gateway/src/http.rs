//! The HTTP API.

mod api;
mod cors;
mod head_deadline;
mod influx;
mod observe;
mod otlp;
mod request;
mod request_trace;

use std::{future::poll_fn, io, pin::Pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Bytes,
    extract::Request,
    http::header,
    middleware::from_fn_with_state,
    routing::{get, post},
};
use futures_util::FutureExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use self::head_deadline::{HeadDeadline, Turns};
use crate::{
    auth::Peer, client_stream::Transport, context::GatewayContext, forward::PATH, memory::Account, openapi,
};

/// Largest head of a request, and largest chunk of a body that is read at once, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// How long the connection of a refused sender stays open after the answer.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// The routes of the API.
pub(super) fn router(gateway: Arc<GatewayContext>) -> Router {
    let description = Bytes::from(openapi::document(&gateway.ingest.routes.bindings).to_string());
    let description = ([(header::CONTENT_TYPE, "application/json")], description);
    let router = Router::new()
        .route("/v1/readings", post(api::readings))
        .route(PATH, post(api::forwarded))
        .route("/v1/tasks/{kind}", post(api::task))
        .route("/v1/map/{name}", post(api::mapped))
        .route("/v1/events", post(api::events))
        .route("/v1/metrics", post(otlp::metrics))
        .route("/openapi.json", get(description))
        .route("/api/v2/write", post(influx::write))
        .route("/write", post(influx::write))
        .route("/query", get(influx::query).post(influx::query))
        .route("/ping", get(influx::ping))
        .route("/health", get(influx::health));
    cors::allow(router, &gateway.network.allowed_origins)
        .layer(from_fn_with_state(Arc::clone(&gateway), observe::observe))
        .with_state(gateway)
}

/// Serves one connection until it ends. After `stop` is cancelled, it completes the current request and closes the
/// connection.
pub(super) async fn serve(
    stream: impl Transport,
    router: Router,
    gateway: &GatewayContext,
    peer: &Peer,
    memory: &Account,
    stop: &CancellationToken,
) -> io::Result<()> {
    // `pipeline_flush` stays off: it writes no response while more requests arrive.
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MAX_HEAD);
    let turns = Turns::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        let serving = turns.serving();
        request.extensions_mut().insert(peer.clone());
        request.extensions_mut().insert(memory.clone());
        router.clone().oneshot(request).inspect(move |_| drop(serving))
    });
    let limits = &gateway.limits;
    let stream = HeadDeadline::new(stream, turns.clone(), limits.idle_timeout, limits.header_timeout);
    let (stream, ended) = {
        let mut connection = http.serve_connection(TokioIo::new(stream), service);
        let serving = poll_fn(|cx| connection.poll_without_shutdown(cx));
        let ended = match stop.run_until_cancelled(serving).await {
            Some(ended) => ended,
            None => {
                Pin::new(&mut connection).graceful_shutdown();
                poll_fn(|cx| connection.poll_without_shutdown(cx)).await
            }
        };
        (connection.into_parts().io.into_inner(), ended)
    };
    let HeadDeadline { mut stream, is_late, .. } = stream;
    if is_late {
        // The request was not complete, so no handler has logged it.
        gateway.instruments.audit.refused(peer, "http", "timeout", None);
    }
    if stream.shutdown().await.is_ok() && peer.is_refused() {
        Box::pin(discard_rest(stream)).await;
    }
    ended.map_err(io::Error::other)
}

/// Discards the rest of a refused request. A socket that is closed with unread bytes is reset, and the sender may lose
/// the answer.
async fn discard_rest(mut stream: impl AsyncRead + Unpin) {
    let discarding = async {
        let mut chunk = vec![0; MAX_HEAD];
        while stream.read(&mut chunk).await.is_ok_and(|bytes| bytes > 0) {
            tokio::task::yield_now().await;
        }
    };
    // The result is the same if the time is up.
    let _ = timeout(LINGER_TIMEOUT, discarding).await;
}
