//! The HTTP API.

mod api;
mod body;
mod influx;
mod observe;
mod request;
mod response;

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::Request,
    middleware::from_fn_with_state,
    routing::{get, post},
};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::{auth::Peer, openapi, parts::Parts, unread::Unread};

/// The largest head of a request, and the largest piece of a body that is read at once.
const LARGEST_HEAD: usize = 16 * 1024;

/// The API over the gateway's parts.
pub(super) fn router(parts: Arc<Parts>) -> Router {
    let description = Bytes::from(openapi::document(parts.ingest.bindings()).to_string());
    Router::new()
        .route("/v1/readings", post(api::readings))
        .route("/v1/tasks/{kind}", post(api::task))
        .route("/openapi.json", get(|| async move { api::openapi(description) }))
        .route("/api/v2/write", post(influx::write))
        .route("/write", post(influx::write))
        .route("/query", get(influx::query).post(influx::query))
        .route("/ping", get(influx::ping))
        .route("/health", get(influx::health))
        .layer(from_fn_with_state(Arc::clone(&parts), observe::observe))
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
