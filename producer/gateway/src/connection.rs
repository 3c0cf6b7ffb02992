//! One connection.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use futures_util::{
    FutureExt,
    future::{self, BoxFuture},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::Peer,
    client_stream::{ClientStream, Protocol},
    context::GatewayContext,
    http,
    refusal::Refusal,
    source_limit::SourcePermit,
    tcp, tls,
};

/// How long the rejection of a connection may take, and the wait for its first bytes before it.
const REJECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A byte stream in both directions.
trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Transport for T {}

/// An accepted connection.
pub struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) port: Arc<Port>,
    /// Counts it among the connections of its source address; `None` if that address has too many.
    pub(super) source: Option<Box<SourcePermit>>,
}

/// What all connections of a listening port share.
pub(super) struct Port {
    pub(super) gateway: Arc<GatewayContext>,
    pub(super) router: Router,
    pub(super) stop: CancellationToken,
}

impl Connection {
    /// Serves the connection until it ends. Errors are logged and affect no other connection.
    pub async fn serve(self) {
        let Self { stream, peer, port, source: _source } = self;
        let peer = Peer::new(peer);
        // Answers are small, and senders wait for them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(peer = %peer.address, %error, "failed to set TCP_NODELAY");
        }
        let ended = tokio::select! {
            ended = port.serve(stream, &peer) => ended,
            () = port.authentication_overdue(&peer) => {
                peer.audit("connection", "authentication-timeout", None);
                return;
            }
        };
        if let Err(error) = ended {
            tracing::debug!(peer = %peer.address, %error, "connection ended");
        }
    }

    /// Answers `busy` in the sender's protocol and closes the connection. A sender that sends nothing within
    /// [`REJECT_TIMEOUT`] gets no answer.
    pub(super) async fn reject(self) -> io::Result<()> {
        let mut stream = ClientStream::new(self.stream);
        let protocol = stream.sniff(REJECT_TIMEOUT).await?;
        let limits = &self.port.gateway.limits;
        let reason = match self.source {
            Some(_) => format!("too many connections ({})", limits.max_connections),
            None => {
                let most = limits.max_connections_per_source;
                format!("too many connections from this address (gateway.max_connections_per_source {most})")
            }
        };
        let refusal = Refusal::overloaded(reason, limits.retry_after);
        let answer = match protocol {
            None | Some(Protocol::Tls) => return Ok(()),
            Some(Protocol::Lines) => refusal.line() + "\n",
            Some(Protocol::Http) => {
                let (seconds, body) = (refusal.retry_seconds().unwrap_or(1), refusal.problem());
                format!(
                    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: {seconds}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
        };
        timeout(REJECT_TIMEOUT, async {
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await
        })
        .await?
    }
}

impl Port {
    /// Resolves when the connection has not authenticated within `auth_timeout`. Never resolves if authentication is
    /// not required.
    ///
    /// Otherwise a connection that sends only what needs no authentication (blank lines, `/health`, wrong tokens) would
    /// occupy a slot of the server without end.
    async fn authentication_overdue(&self, peer: &Peer) {
        if self.gateway.access.is_required() {
            tokio::time::sleep(self.gateway.limits.auth_timeout).await;
            if !peer.is_authenticated() {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    /// The futures of the protocols are boxed, so that an idle connection does not reserve memory for the largest of
    /// them.
    async fn serve(&self, stream: impl Transport, peer: &Peer) -> io::Result<()> {
        let mut stream = ClientStream::new(stream);
        match self.sniff(&mut stream).await? {
            Some(Protocol::Tls) => Box::pin(self.serve_tls(stream, peer)).await,
            protocol => self.serve_plain(protocol, stream, peer).await,
        }
    }

    /// The protocol of a new connection; `None` to end it.
    async fn sniff(&self, stream: &mut ClientStream<impl Transport>) -> io::Result<Option<Protocol>> {
        let sniffing = stream.sniff(self.gateway.limits.first_byte_timeout);
        self.stop.run_until_cancelled(sniffing).await.unwrap_or(Ok(None))
    }

    fn serve_plain<'a>(
        &'a self,
        protocol: Option<Protocol>,
        stream: ClientStream<impl Transport>,
        peer: &'a Peer,
    ) -> BoxFuture<'a, io::Result<()>> {
        let Self { gateway, router, stop } = self;
        match protocol {
            None => future::ready(Ok(())).boxed(),
            Some(Protocol::Lines) => tcp::serve(stream, gateway, peer, stop).boxed(),
            Some(Protocol::Http) => {
                let stream = stream.with_write_timeout(gateway.limits.write_timeout);
                http::serve(stream, router.clone(), gateway, peer, stop).boxed()
            }
            Some(Protocol::Tls) => future::ready(Err(io::Error::other("TLS within TLS"))).boxed(),
        }
    }

    async fn serve_tls(&self, stream: ClientStream<impl Transport>, peer: &Peer) -> io::Result<()> {
        let gateway = &self.gateway;
        let Some(tls) = &gateway.tls else {
            peer.audit("tls", "no-certificate-here", None);
            return Err(io::Error::other("TLS on a port without a certificate (--tls-cert)"));
        };
        let acceptor = tls.get().clone();
        let handshake = timeout(gateway.limits.header_timeout, acceptor.accept(stream));
        let Some(stream) = self.stop.run_until_cancelled(handshake).await else { return Ok(()) };
        let stream = stream?.inspect_err(|_| peer.audit("tls", "handshake", None))?;
        let peer = peer.with_device(tls::subject(stream.get_ref().1));
        if peer.device.is_some() {
            // The handshake has verified the certificate, which authenticates the connection. A token that a request
            // carries is checked all the same.
            let _ = gateway.access.caller(&peer, None);
        }
        let mut stream = ClientStream::new(stream);
        let protocol = self.sniff(&mut stream).await?;
        self.serve_plain(protocol, stream, &peer).await
    }
}
