//! One connection.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    audit::audit,
    auth::Peer,
    context::GatewayContext,
    http,
    sniff::{Protocol, Sniffed, sniff},
    source_limit::SourcePermit,
    tcp, tls,
};

/// How long the rejection of a connection may take, and the wait for its first bytes before it.
const REJECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A byte stream in both directions.
trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

/// An accepted connection.
pub struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) gateway: Arc<GatewayContext>,
    pub(super) router: axum::Router,
    pub(super) stop: CancellationToken,
    /// Counts it among the connections of its source address; `None` if that address has too many.
    pub(super) source: Option<Box<SourcePermit>>,
}

impl Connection {
    /// Serves the connection until it ends. Errors are logged and affect no other connection.
    pub async fn serve(self) {
        let Self { stream, peer, gateway, router, stop, source: _source } = self;
        let peer = Peer::new(peer);
        // Answers are small, and senders wait for them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(peer = %peer.address, %error, "failed to set TCP_NODELAY");
        }
        let ended = tokio::select! {
            ended = serve_protocol(stream, &gateway, router, &peer, &stop) => ended,
            () = authentication_overdue(&gateway, &peer) => {
                audit(&peer, "connection", "authentication-timeout", None);
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
        let Some((protocol, mut stream)) = sniff(self.stream, REJECT_TIMEOUT).await? else { return Ok(()) };
        let limits = &self.gateway.limits;
        let seconds = limits.retry_after.as_secs().max(1);
        let reason = match self.source {
            Some(_) => format!("too many connections ({})", limits.max_connections),
            None => {
                let most = limits.max_connections_per_source;
                format!("too many connections from this address (gateway.max_connections_per_source {most})")
            }
        };
        let answer = match protocol {
            Protocol::Tls => return Ok(()),
            Protocol::Lines => format!("error busy {reason}\n"),
            Protocol::Http => {
                let body = format!(
                    r#"{{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"{reason}","code":"busy"}}"#
                );
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
        .await
        .unwrap_or(Ok(()))
    }
}

/// Resolves when the connection has not authenticated within `auth_timeout`. Never resolves if authentication is not
/// required.
///
/// Otherwise a connection that sends only what needs no authentication (blank lines, `/health`, wrong tokens) would
/// occupy a slot of the server without end.
async fn authentication_overdue(gateway: &GatewayContext, peer: &Peer) {
    if gateway.access.is_required() {
        tokio::time::sleep(gateway.limits.auth_timeout).await;
        if !peer.is_authenticated() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// The futures of the protocols are boxed, so that an idle connection does not reserve memory for the largest of them.
async fn serve_protocol(
    stream: impl Transport + 'static,
    gateway: &Arc<GatewayContext>,
    router: axum::Router,
    peer: &Peer,
    stop: &CancellationToken,
) -> io::Result<()> {
    match sniff_protocol(stream, gateway, stop).await? {
        None => Ok(()),
        Some((Protocol::Http, stream)) => serve_http(stream, router, gateway, peer, stop).await,
        Some((Protocol::Lines, stream)) => Box::pin(tcp::serve(stream, gateway, peer, stop)).await,
        Some((Protocol::Tls, stream)) => Box::pin(serve_tls(stream, gateway, router, peer, stop)).await,
    }
}

async fn sniff_protocol<S: Transport>(
    stream: S,
    gateway: &GatewayContext,
    stop: &CancellationToken,
) -> io::Result<Option<(Protocol, Sniffed<S>)>> {
    tokio::select! {
        sniffed = sniff(stream, gateway.limits.first_byte_timeout) => sniffed,
        () = stop.cancelled() => Ok(None),
    }
}

async fn serve_http(
    stream: Sniffed<impl Transport + 'static>,
    router: axum::Router,
    gateway: &Arc<GatewayContext>,
    peer: &Peer,
    stop: &CancellationToken,
) -> io::Result<()> {
    let served = Box::pin(http::serve(stream, router, gateway, peer, stop)).await;
    served.map_err(|error| {
        // No request was complete, so no handler has logged it.
        if error.is_timeout() {
            audit(peer, "http", "timeout", None);
        }
        io::Error::other(error)
    })
}

/// Serves a TLS connection.
async fn serve_tls(
    stream: impl Transport + 'static,
    gateway: &Arc<GatewayContext>,
    router: axum::Router,
    peer: &Peer,
    stop: &CancellationToken,
) -> io::Result<()> {
    let Some(tls) = &gateway.tls else {
        audit(peer, "tls", "no-certificate-here", None);
        return Err(io::Error::other("TLS on a port without a certificate (--tls-cert)"));
    };
    let stream = tokio::select! {
        stream = timeout(gateway.limits.header_timeout, tls.acceptor().accept(stream)) => {
            stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        }
        () = stop.cancelled() => return Ok(()),
    };
    let stream = stream.inspect_err(|_| audit(peer, "tls", "handshake", None))?;
    let peer = peer.with_device(tls::subject(stream.get_ref().1));
    if peer.device.is_some() {
        // The handshake has verified the certificate, which authenticates the connection. A token that a request
        // carries is checked all the same.
        let _ = gateway.access.caller(&peer, None);
    }
    match sniff_protocol(stream, gateway, stop).await? {
        None => Ok(()),
        Some((Protocol::Http, stream)) => serve_http(stream, router, gateway, &peer, stop).await,
        Some((Protocol::Lines, stream)) => Box::pin(tcp::serve(stream, gateway, &peer, stop)).await,
        Some((Protocol::Tls, _)) => Err(io::Error::other("TLS within TLS")),
    }
}
