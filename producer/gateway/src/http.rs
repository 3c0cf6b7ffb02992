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

use crate::{auth::Peer, context::GatewayContext, openapi, write_stall_guard::WriteStallGuard};

/// Largest head of a request, and largest chunk of a body that is read at once, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// The routes of the API.
pub(super) fn router(gateway: Arc<GatewayContext>) -> Router {
    let description = Bytes::from(openapi::document(gateway.ingest.bindings()).to_string());
    Router::new()
        .route("/v1/readings", post(api::readings))
        .route("/v1/tasks/{kind}", post(api::task))
        .route("/openapi.json", get(|| async move { api::openapi(description) }))
        .route("/api/v2/write", post(influx::write))
        .route("/write", post(influx::write))
        .route("/query", get(influx::query).post(influx::query))
        .route("/ping", get(influx::ping))
        .route("/health", get(influx::health))
        .layer(from_fn_with_state(Arc::clone(&gateway), observe::observe))
        .with_state(gateway)
}

/// Serves one connection until it ends. After `stop` is cancelled, it completes the current request and closes the
/// connection.
pub(super) async fn serve<S>(
    stream: S,
    router: Router,
    gateway: &GatewayContext,
    peer: &Peer,
    stop: &CancellationToken,
) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // `pipeline_flush` stays off: it writes no response while more requests arrive.
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(gateway.limits.header_timeout).max_buf_size(MAX_HEAD);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        router.clone().oneshot(request)
    });
    let stream = WriteStallGuard::new(stream, gateway.limits.write_timeout).with_linger(peer.refused());
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
