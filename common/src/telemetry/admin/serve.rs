//! Serves the admin port, with bounds against slow and broken clients.

use std::future::{Future, IntoFuture};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::FutureExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::supervise;

use super::{AdminConfig, AdminParts, bind::HEADER_TIMEOUT, router};

/// Most open connections: enough for probes, a scraper and a few people. Further clients wait in the backlog.
const MAX_CONNECTIONS: usize = 64;

/// Longest life of a connection, for clients that never read their response.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(300);

/// Time for running requests to finish when the port closes.
const CLOSING_GRACE: Duration = Duration::from_secs(1);

/// Pause after a failed accept: without free file descriptors, an immediate retry would only use CPU time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the bound port until `shutdown` completes, then closes it and gives running requests 1 s to finish. An
/// error on a connection ends only that connection.
pub async fn serve(config: AdminConfig, parts: AdminParts, shutdown: impl Future<Output = ()>) {
    let AdminConfig { listener, token, header_timeout, .. } = config;
    serve_connections(listener, router(parts, token), header_timeout, shutdown).await;
}

/// As [`serve`], with another router. Endless streams end with their connection after 5 min; clients must reconnect.
pub async fn serve_router(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    serve_connections(listener, router, HEADER_TIMEOUT, shutdown).await;
}

async fn serve_connections(
    listener: TcpListener,
    router: Router,
    header_timeout: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let (connections, closing) = (TaskTracker::new(), CancellationToken::new());
    let server = Server {
        listener,
        router,
        header_timeout,
        slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        connections: connections.clone(),
        closing: closing.clone(),
    };
    let accepting = supervise::restarting("admin accept", server, |server| server.accept().boxed());
    tokio::select! {
        () = shutdown => {}
        _ = accepting.into_future() => {}
    }
    closing.cancel();
    connections.close();
    let _ = tokio::time::timeout(CLOSING_GRACE, connections.wait()).await;
}

/// Accepts connections, each in a task of its own.
struct Server {
    listener: TcpListener,
    router: Router,
    header_timeout: Duration,
    slots: Arc<Semaphore>,
    connections: TaskTracker,
    closing: CancellationToken,
}

impl Server {
    async fn accept(&self) {
        loop {
            let slot = Arc::clone(&self.slots).acquire_owned().await.expect("the semaphore is never closed");
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let (router, closing) = (self.router.clone(), self.closing.clone());
                    let serving = serve_connection(stream, router, self.header_timeout, closing);
                    let connection = supervise::isolated("admin connection", async move {
                        let _slot = slot;
                        // Errors and timeouts of a client are ignored: nothing here depends on its response.
                        let _ = tokio::time::timeout(CONNECTION_LIFETIME, serving).await;
                    });
                    connection.spawn_in(&self.connections).detach();
                }
                Err(error) => {
                    ::tracing::warn!(%error, "admin port cannot accept connections, retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn serve_connection(
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
