//! Serves the admin port, with bounds against slow and broken clients.

use std::{future::IntoFuture, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::ConnectInfo};
use futures_util::FutureExt;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use crate::supervise;

use super::{bind::HEADER_TIMEOUT, tls::ServerTls};

/// Most open connections: enough for probes, a scraper and a few people. Further clients wait in the backlog.
const MAX_CONNECTIONS: usize = 64;

/// Longest life of a connection, for clients that never read their response.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(300);

/// Time for running requests to finish when the port closes.
const CLOSING_GRACE: Duration = Duration::from_secs(1);

/// Pause after a failed accept: without free file descriptors, an immediate retry would only use CPU time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` completes, then closes the port and gives running requests 1 s to finish. An error on a
/// connection ends only that connection. Requests have the extension `ConnectInfo<SocketAddr>`. Endless streams end with their connection after 5 min; clients must reconnect.
pub async fn serve_router(
    listener: TcpListener,
    router: Router,
    tls: Option<ServerTls>,
    shutdown: impl Future<Output = ()>,
) {
    serve_connections(listener, router, tls, HEADER_TIMEOUT, shutdown).await;
}

pub(super) async fn serve_connections(
    listener: TcpListener,
    router: Router,
    tls: Option<ServerTls>,
    header_timeout: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let server = Server { listener, router, tls, header_timeout, slots, graceful: &graceful };
    let accepting = supervise::restarting("admin accept", server, |server| server.accept().boxed());
    tokio::select! {
        () = shutdown => {}
        _ = accepting.into_future() => {}
    }
    let _ = timeout(CLOSING_GRACE, graceful.shutdown()).await;
}

/// Accepts connections, each in a task of its own.
struct Server<'a> {
    listener: TcpListener,
    router: Router,
    /// [`None`] for plain HTTP.
    tls: Option<ServerTls>,
    header_timeout: Duration,
    slots: Arc<Semaphore>,
    graceful: &'a GracefulShutdown,
}

impl Server<'_> {
    async fn accept(&self) {
        loop {
            let slot = Arc::clone(&self.slots).acquire_owned().await.expect("the semaphore is never closed");
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let serving = self.serve(stream, peer);
                    let connection = supervise::isolated("admin connection", async move {
                        let _slot = slot;
                        // Errors and timeouts of a client are ignored: nothing here depends on its response.
                        let _ = timeout(CONNECTION_LIFETIME, serving).await;
                    });
                    connection.spawn().detach();
                }
                Err(error) => {
                    ::tracing::warn!(%error, "admin port cannot accept connections, retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves one connection until it ends.
    fn serve(&self, stream: TcpStream, peer: SocketAddr) -> impl Future<Output = ()> + Send + 'static {
        let router = TowerToHyperService::new(self.router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            router.call(request)
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.header_timeout);
        let (watcher, handshake) = (self.graceful.watcher(), self.header_timeout);
        let tls = self.tls.as_ref().map(ServerTls::acceptor);
        async move {
            let Some(tls) = tls else {
                let _ = watcher.watch(http.serve_connection(TokioIo::new(stream), service)).await;
                return;
            };
            if let Ok(Ok(stream)) = timeout(handshake, tls.accept(stream)).await {
                let _ = watcher.watch(http.serve_connection(TokioIo::new(stream), service)).await;
            }
        }
    }
}
