//! Answering on the admin port, whatever its clients do.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{AdminConfig, AdminParts, bind::HEADER_TIMEOUT, router};

/// Probes, a scraper and a few people; further clients wait in the backlog.
const MOST_CONNECTIONS: usize = 64;

/// A client that never reads its answer holds a connection no longer than this.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(300);

/// What an answer under way gets when the port closes.
const CLOSING_GRACE: Duration = Duration::from_secs(1);

/// Wait after a failed accept: out of file descriptors, trying again at once only burns the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers on the bound port until `shutdown` completes, then closes it; answers under way get a
/// second to get out. Never fails: what goes wrong on one connection ends that connection.
pub async fn serve(config: AdminConfig, parts: AdminParts, shutdown: impl Future<Output = ()>) {
    let AdminConfig { listener, token, header_timeout, .. } = config;
    answer_all(listener, router(parts, token), header_timeout, shutdown).await;
}

/// The same for other routes: the same bounds hold, and streams that never end are cut and come back.
pub async fn serve_router(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    answer_all(listener, router, HEADER_TIMEOUT, shutdown).await;
}

async fn answer_all(
    listener: TcpListener,
    router: Router,
    header_timeout: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let connections = TaskTracker::new();
    let closing = CancellationToken::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            () = &mut shutdown => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let answering = answer(stream, router.clone(), header_timeout, closing.clone());
                connections.spawn(async move {
                    let _slot = slot;
                    // Late and broken clients are their own loss; nobody here could act on it.
                    let _ = tokio::time::timeout(CONNECTION_LIFETIME, answering).await;
                });
            }
            Err(error) => {
                ::tracing::warn!(%error, "admin port cannot accept a connection");
                tokio::select! {
                    () = &mut shutdown => break,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    drop(listener);
    closing.cancel();
    connections.close();
    let _ = tokio::time::timeout(CLOSING_GRACE, connections.wait()).await;
}

async fn answer(
    stream: TcpStream,
    router: Router,
    header_timeout: Duration,
    closing: CancellationToken,
) -> io::Result<()> {
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended.map_err(io::Error::other)
}
