//! One connection.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use futures_util::{
    FutureExt,
    future::{self, BoxFuture},
};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::Peer,
    certificate::ClientCertificate,
    client_stream::{ClientStream, Protocol, Transport},
    context::GatewayContext,
    expiry, http,
    memory::Account,
    refusal::Refusal,
    source_limit::SourcePermit,
    tcp,
};

/// How long the rejection of a connection may take, and the wait for its first bytes before it.
const REJECT_TIMEOUT: Duration = Duration::from_secs(1);

/// An accepted connection.
pub struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) port: Arc<Port>,
    /// Counts it among the connections of its source address; `None` if that address has too many.
    pub(super) source: Option<SourcePermit>,
}

/// The state that all connections of a listening port share.
pub(super) struct Port {
    pub(super) gateway: Arc<GatewayContext>,
    pub(super) router: Router,
    pub(super) stop: CancellationToken,
    /// The name of the server that runs them.
    pub(super) server: &'static str,
}

impl Connection {
    /// Serves the connection until it ends. Errors are logged and affect no other connection.
    pub async fn serve(self) {
        let Self { stream, peer, port, source } = self;
        let budget = &port.gateway.budget;
        // Answers are small, and senders wait for them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "failed to set TCP_NODELAY");
        }
        let mut stream = ClientStream::new(stream);
        let ended = match port.gateway.network.expects_proxy_header(peer.ip()) {
            false => {
                let memory = budget.account(source.as_ref().and_then(SourcePermit::source));
                port.serve(stream, &Peer::new(peer), &memory).await
            }
            true => match port.sender(&mut stream, peer).await {
                Some((sender, source)) => port.serve(stream, &sender, &budget.account(source.source())).await,
                None => return,
            },
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }

    /// Answers `busy` in the sender's protocol and closes the connection. A sender that sends nothing within
    /// [`REJECT_TIMEOUT`] gets no answer.
    pub(super) async fn reject(self) -> io::Result<()> {
        let mut stream = ClientStream::new(self.stream);
        let limits = &self.port.gateway.limits;
        let refusal = match self.source {
            None => self.port.too_many_of_a_source(),
            Some(_) => {
                let reason = format!("too many connections ({})", limits.max_connections);
                Refusal::overloaded(reason, limits.retry_after)
            }
        };
        let protocol = stream.sniff(REJECT_TIMEOUT).await?;
        answer_and_close(&mut stream, protocol, &refusal).await
    }
}

/// Answers in the sender's protocol and closes the connection.
async fn answer_and_close(
    stream: &mut ClientStream<impl Transport>,
    protocol: Option<Protocol>,
    refusal: &Refusal,
) -> io::Result<()> {
    let answer = match protocol {
        None | Some(Protocol::Tls) => return Ok(()),
        Some(Protocol::Lines) => refusal.line() + "\n",
        Some(Protocol::Http) => {
            let body = refusal.problem();
            let wait = refusal.retry_seconds().map(|seconds| format!("retry-after: {seconds}\r\n"));
            format!(
                "HTTP/1.1 {}\r\ncontent-type: application/problem+json\r\n{}connection: close\r\ncontent-length: {}\r\n\r\n{body}",
                refusal.status,
                wait.unwrap_or_default(),
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

impl Port {
    /// Reads the PROXY header of a connection from the proxy at `proxy`, and counts it among those of the sender. `None`
    /// if it is refused.
    async fn sender(
        &self,
        stream: &mut ClientStream<impl Transport>,
        proxy: SocketAddr,
    ) -> Option<(Peer, SourcePermit)> {
        let Self { gateway, stop, server, .. } = self;
        let reading = stream.read_proxy_header(gateway.limits.first_byte_timeout);
        let peer = match stop.run_until_cancelled(reading).await? {
            // A connection of the proxy itself, such as a health check.
            Ok(None) => return Some((Peer::new(proxy), SourcePermit::uncounted())),
            Ok(Some(address)) => Peer::new(address),
            Err(error) => {
                gateway.instruments.audit.refused(&Peer::new(proxy), "proxy", "proxy-header", None);
                tracing::debug!(peer = %proxy, %error, "connection ended");
                return None;
            }
        };
        let permit = gateway.network.sources.admit(peer.address.ip());
        if permit.is_none() {
            gateway.instruments.refused(server, "source");
            gateway.instruments.audit.refused(&peer, server, "too-many-connections", None);
            // The sender may have left.
            let protocol = stream.sniff(REJECT_TIMEOUT).await.ok().flatten();
            let _ = answer_and_close(stream, protocol, &self.too_many_of_a_source()).await;
        }
        Some((peer, permit?))
    }

    fn too_many_of_a_source(&self) -> Refusal {
        let limits = &self.gateway.limits;
        Refusal::too_many_of_a_source(limits.max_connections_per_source, limits.retry_after)
    }

    /// Serves a connection, and closes it if it does not authenticate in time.
    async fn serve(
        &self,
        stream: ClientStream<impl Transport>,
        peer: &Peer,
        memory: &Account,
    ) -> io::Result<()> {
        tokio::select! {
            ended = self.serve_any(stream, peer, memory) => ended,
            () = self.authentication_overdue(peer) => {
                self.gateway.instruments.audit.refused(peer, "connection", "authentication-timeout", None);
                Ok(())
            }
        }
    }

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
    async fn serve_any(
        &self,
        mut stream: ClientStream<impl Transport>,
        peer: &Peer,
        memory: &Account,
    ) -> io::Result<()> {
        match self.sniff(&mut stream).await? {
            Some(Protocol::Tls) => Box::pin(self.serve_tls(stream, peer, memory)).await,
            Some(protocol) if self.gateway.network.tls_only => {
                let refusal = Refusal::tls_required();
                self.gateway.instruments.audit.refused(peer, "connection", refusal.code, None);
                Box::pin(answer_and_close(&mut stream, Some(protocol), &refusal)).await
            }
            protocol => self.serve_plain(protocol, stream, peer, memory, &self.stop).await,
        }
    }

    /// The protocol of a new connection; `None` to end it.
    async fn sniff(&self, stream: &mut ClientStream<impl Transport>) -> io::Result<Option<Protocol>> {
        let sniffing = stream.sniff(self.gateway.limits.first_byte_timeout);
        self.stop.run_until_cancelled(sniffing).await.unwrap_or(Ok(None))
    }

    /// Serves the protocol inside TLS, or without it, until `stop` is cancelled.
    fn serve_plain<'a>(
        &'a self,
        protocol: Option<Protocol>,
        stream: ClientStream<impl Transport>,
        peer: &'a Peer,
        memory: &'a Account,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, io::Result<()>> {
        let Self { gateway, router, .. } = self;
        match protocol {
            None => future::ready(Ok(())).boxed(),
            Some(Protocol::Lines) => tcp::serve(stream, gateway, peer, memory, stop).boxed(),
            Some(Protocol::Http) => {
                let stream = stream.with_write_timeout(gateway.limits.write_timeout);
                http::serve(stream, router.clone(), gateway, peer, memory, stop).boxed()
            }
            Some(Protocol::Tls) => future::ready(Err(io::Error::other("TLS within TLS"))).boxed(),
        }
    }

    async fn serve_tls(
        &self,
        stream: ClientStream<impl Transport>,
        peer: &Peer,
        memory: &Account,
    ) -> io::Result<()> {
        let gateway = &self.gateway;
        let audit = &gateway.instruments.audit;
        let Some(tls) = &gateway.tls else {
            audit.refused(peer, "tls", "no-certificate-here", None);
            return Err(io::Error::other("TLS on a port without a certificate (--tls-cert)"));
        };
        let acceptor = tls.get().clone();
        let handshake = timeout(gateway.limits.header_timeout, acceptor.accept(stream));
        let Some(stream) = self.stop.run_until_cancelled(handshake).await else { return Ok(()) };
        let stream = stream?.inspect_err(|_| audit.refused(peer, "tls", "handshake", None))?;
        let certificate = ClientCertificate::of(stream.get_ref().1);
        let ends = certificate.as_ref().map(|certificate| certificate.not_after);
        let peer = peer.with_certificate(certificate.map(Arc::new));
        if peer.device().is_some() {
            // The handshake has verified the certificate, which authenticates the connection. A token that a request
            // carries is checked all the same.
            let _ = gateway.access.caller(&peer, None);
        }
        // When the certificate ends, what was read is still answered, as in a shutdown.
        let stop = self.stop.child_token();
        let serving = async {
            let mut stream = ClientStream::new(stream);
            let protocol = self.sniff(&mut stream).await?;
            self.serve_plain(protocol, stream, &peer, memory, &stop).await
        };
        let ending = async {
            expiry::reached(ends).await;
            audit.refused(&peer, "tls", "certificate-expired", None);
            stop.cancel();
            future::pending().await
        };
        tokio::select! {
            biased;
            never = ending => never,
            ended = serving => ended,
        }
    }
}
