//! Serves the admin port, with bounds against slow and broken clients.
//!
//! Connections and requests have limits of their own. A connection without a request closes when another one needs its
//! place, so that clients that send nothing keep nobody out. A request takes a place of its kind and its address, which
//! it holds until its response is sent; probes need none. A head and a body must arrive in time. Requests that were sent
//! ahead take turns with those of all other connections, behind probes.

use std::{
    convert::Infallible,
    error::Error,
    future::IntoFuture,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::ConnectInfo,
    http::{Extensions, HeaderMap, Response, StatusCode, request::Parts},
    response::IntoResponse,
};
use futures_util::FutureExt;
use http_body_util::LengthLimitError;
use hyper::{
    Request,
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
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
    task::yield_now,
    time::timeout,
};

use super::{
    bind::HEADER_TIMEOUT,
    connections::{Busy, Connection, Connections},
    places::{Place, Places, Refusal, Visitor, is_probe},
    tls::ServerTls,
};
use crate::supervise;

/// Largest body of a request: ids, or a name and a password.
const MAX_BODY: usize = 64 * 1024;

/// Tells who sends a request, by the extension `ConnectInfo<SocketAddr>` and its headers.
pub(super) type Visitors = Arc<dyn Fn(&Extensions, &HeaderMap) -> Visitor + Send + Sync>;

/// Longest life of a connection, for clients that never read their response.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(300);

/// Time for running requests to finish when the port closes.
const CLOSING_GRACE: Duration = Duration::from_secs(1);

/// Requests that begin before the runtime looks for new connections and for probes.
const TURNS: usize = 2;

/// Pause after a failed accept: without free file descriptors, an immediate retry would only use CPU time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` completes, then closes the port and gives running requests 1 s to finish. An error on a
/// connection ends only that connection. Requests have the extension `ConnectInfo<SocketAddr>`, and `visitors` tells who
/// sends one. Endless streams end with their connection after 5 min; clients must reconnect.
pub async fn serve_router(
    listener: TcpListener,
    router: Router,
    tls: Option<ServerTls>,
    visitors: impl Fn(&Extensions, &HeaderMap) -> Visitor + Send + Sync + 'static,
    shutdown: impl Future<Output = ()>,
) {
    serve_connections(listener, router, tls, Arc::new(visitors), HEADER_TIMEOUT, shutdown).await;
}

pub(super) async fn serve_connections(
    listener: TcpListener,
    router: Router,
    tls: Option<ServerTls>,
    visitors: Visitors,
    read_timeout: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let router = TowerToHyperService::new(router);
    let requests = Arc::new(Requests {
        router,
        visitors,
        read_timeout,
        places: Arc::default(),
        turns: Semaphore::new(TURNS),
    });
    let server = Server { listener, requests, tls, connections: Arc::default(), graceful: &graceful };
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
    requests: Arc<Requests>,
    /// [`None`] for plain HTTP.
    tls: Option<ServerTls>,
    connections: Arc<Connections>,
    graceful: &'a GracefulShutdown,
}

impl Server<'_> {
    async fn accept(&self) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    // Without a place the connection closes.
                    let Some(connection) = self.connections.admit(peer.ip()) else { continue };
                    let closing = connection.closing.clone();
                    let serving = self.serve(stream, peer, Arc::new(connection));
                    let connection = supervise::isolated("admin connection", async move {
                        // Errors and timeouts of a client are ignored: nothing here depends on its response.
                        let _ = closing.run_until_cancelled(timeout(CONNECTION_LIFETIME, serving)).await;
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
    fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        connection: Arc<Connection>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let requests = Arc::clone(&self.requests);
        let read_timeout = requests.read_timeout;
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            let (requests, connection) = (Arc::clone(&requests), Arc::clone(&connection));
            async move { Ok::<_, Infallible>(requests.answer(request, &connection).await) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(read_timeout);
        let watcher = self.graceful.watcher();
        let tls = self.tls.as_ref().map(ServerTls::acceptor);
        async move {
            let Some(tls) = tls else {
                let _ = watcher.watch(http.serve_connection(TokioIo::new(stream), service)).await;
                return;
            };
            if let Ok(Ok(stream)) = timeout(read_timeout, tls.accept(stream)).await {
                let _ = watcher.watch(http.serve_connection(TokioIo::new(stream), service)).await;
            }
        }
    }
}

/// Answers requests.
struct Requests {
    router: TowerToHyperService<Router>,
    visitors: Visitors,
    places: Arc<Places>,
    /// In the order in which connections ask for them. A connection has one at a time, however much it sends ahead.
    turns: Semaphore,
    /// Time limit for a request's head, and for its body.
    read_timeout: Duration,
}

impl Requests {
    async fn answer(&self, request: Request<Incoming>, connection: &Arc<Connection>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let busy = connection.busy();
        let turn = if is_probe(parts.uri.path()) { None } else { self.turns.acquire().await.ok() };
        yield_now().await;
        drop(turn);
        let (body, place) = match self.admit(&parts, body).await {
            Ok(admitted) => admitted,
            Err(refusal) => return refusal.into_response(),
        };
        let request = Request::from_parts(parts, Body::from(body));
        let Ok(response) = self.router.call(request).await;
        response.map(|body| Body::new(HeldBody { body, _held: (busy, place) }))
    }

    /// Takes a place and reads the body, so that no handler waits for a client. A probe needs no place, and its body is not
    /// read.
    async fn admit(&self, parts: &Parts, body: Incoming) -> Result<(Bytes, Option<Place>), Refusal> {
        if is_probe(parts.uri.path()) {
            return Ok((Bytes::new(), None));
        }
        let visitor = (self.visitors)(&parts.extensions, &parts.headers);
        let place = Some(self.places.take(parts.uri.path(), visitor)?);
        if body.is_end_stream() {
            return Ok((Bytes::new(), place));
        }
        match timeout(self.read_timeout, to_bytes(Body::new(body), MAX_BODY)).await {
            Ok(Ok(body)) => Ok((body, place)),
            Ok(Err(error)) if error.source().is_some_and(|cause| cause.is::<LengthLimitError>()) => {
                let detail = format!("the body has more than {MAX_BODY} bytes");
                Err(Refusal(StatusCode::PAYLOAD_TOO_LARGE, detail))
            }
            Ok(Err(_)) => Err(Refusal(StatusCode::BAD_REQUEST, "the body ended too early".to_owned())),
            Err(_) => {
                let detail = format!("the body did not arrive within {:?}", self.read_timeout);
                Err(Refusal(StatusCode::REQUEST_TIMEOUT, detail))
            }
        }
    }
}

/// A response's body, and what it holds until it is sent.
struct HeldBody {
    body: Body,
    _held: (Busy, Option<Place>),
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
