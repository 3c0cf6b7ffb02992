//! One sensor connection, from its first byte to its last.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    audit::audit,
    auth::Peer,
    http,
    parts::Parts,
    sniff::{Protocol, Sniffed, sniff},
    sources::SourcePermit,
    tcp, tls,
};

/// What any transport offers.
trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

/// An accepted connection and everything needed to serve it.
pub struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) parts: Arc<Parts>,
    pub(super) router: axum::Router,
    pub(super) stop: CancellationToken,
    /// Its place among the connections of its source; none where there was none left.
    pub(super) source: Option<Box<SourcePermit>>,
}

impl Connection {
    /// Serves it to its end. What goes wrong on it concerns nobody else.
    pub async fn serve(self) {
        let Self { stream, peer, parts, router, stop, source: _source } = self;
        let peer = Peer::new(peer);
        // Receipts are small and awaited one by one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(peer = %peer.address, %error, "no TCP_NODELAY");
        }
        let ended = tokio::select! {
            ended = speak(stream, &parts, router, &peer, &stop) => ended,
            () = authentication_overdue(&parts, &peer) => {
                audit(&peer, "connection", "authentication-timeout", None);
                return;
            }
        };
        if let Err(error) = ended {
            tracing::debug!(peer = %peer.address, %error, "connection ended");
        }
    }

    /// Says in the sender's own protocol that there is no place for it, if it says quickly enough
    /// what it speaks.
    pub(super) async fn turn_away(self) -> io::Result<()> {
        let wait = std::time::Duration::from_secs(1);
        let Some((protocol, mut stream)) = sniff(self.stream, wait).await? else { return Ok(()) };
        let limits = &self.parts.limits;
        let seconds = limits.retry_after.as_secs().max(1);
        let why = match self.source {
            Some(_) => format!("too many connections ({})", limits.max_connections),
            None => {
                let most = limits.max_connections_per_source;
                format!("too many connections from this address (gateway.max_connections_per_source {most})")
            }
        };
        let answer = match protocol {
            Protocol::Tls => return Ok(()),
            Protocol::Lines => format!("error busy {why}\n"),
            Protocol::Http => {
                let body = format!(
                    r#"{{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"{why}","code":"busy"}}"#
                );
                format!(
                    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: {seconds}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
        };
        timeout(wait, async {
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await
        })
        .await
        .unwrap_or(Ok(()))
    }
}

/// Resolves when the connection has not authenticated in time; never where nobody has to.
///
/// A connection that only says what anybody may say (nothing, blank lines, `/health`, wrong tokens) would otherwise
/// hold its place for as long as it likes.
async fn authentication_overdue(parts: &Parts, peer: &Peer) {
    if parts.access.is_required() {
        tokio::time::sleep(parts.limits.auth_timeout).await;
        if !peer.is_authenticated() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Protocols are boxed: a connection that is only open must not take the room of the largest.
async fn speak(
    stream: impl Transport + 'static,
    parts: &Arc<Parts>,
    router: axum::Router,
    peer: &Peer,
    stop: &CancellationToken,
) -> io::Result<()> {
    match look(stream, parts, stop).await? {
        None => Ok(()),
        Some((Protocol::Http, stream)) => over_http(stream, router, parts, peer, stop).await,
        Some((Protocol::Lines, stream)) => Box::pin(tcp::serve(stream, parts, peer, stop)).await,
        Some((Protocol::Tls, stream)) => Box::pin(speak_within(stream, parts, router, peer, stop)).await,
    }
}

async fn look<S: Transport>(
    stream: S,
    parts: &Parts,
    stop: &CancellationToken,
) -> io::Result<Option<(Protocol, Sniffed<S>)>> {
    tokio::select! {
        sniffed = sniff(stream, parts.limits.first_byte_timeout) => sniffed,
        () = stop.cancelled() => Ok(None),
    }
}

async fn over_http(
    stream: Sniffed<impl Transport + 'static>,
    router: axum::Router,
    parts: &Arc<Parts>,
    peer: &Peer,
    stop: &CancellationToken,
) -> io::Result<()> {
    let served = Box::pin(http::serve(stream, router, parts, peer, stop)).await;
    served.map_err(|error| {
        // There was no request to answer yet, so nothing else tells of it.
        if error.is_timeout() {
            audit(peer, "http", "timeout", None);
        }
        io::Error::other(error)
    })
}

/// The same within TLS.
async fn speak_within(
    stream: impl Transport + 'static,
    parts: &Arc<Parts>,
    router: axum::Router,
    peer: &Peer,
    stop: &CancellationToken,
) -> io::Result<()> {
    let Some(tls) = &parts.tls else {
        audit(peer, "tls", "no-certificate-here", None);
        return Err(io::Error::other("TLS spoken on a port without a certificate (--tls-cert)"));
    };
    let stream = tokio::select! {
        stream = timeout(parts.limits.header_timeout, tls.acceptor().accept(stream)) => {
            stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        }
        () = stop.cancelled() => return Ok(()),
    };
    let stream = stream.inspect_err(|_| audit(peer, "tls", "handshake", None))?;
    let peer = peer.with_device(tls::subject(stream.get_ref().1));
    if peer.device.is_some() {
        // A certificate that the authority signed; no token is needed where it is shown, and one that is shown is
        // looked at all the same.
        let _ = parts.access.caller(&peer, None);
    }
    match look(stream, parts, stop).await? {
        None => Ok(()),
        Some((Protocol::Http, stream)) => over_http(stream, router, parts, &peer, stop).await,
        Some((Protocol::Lines, stream)) => Box::pin(tcp::serve(stream, parts, &peer, stop)).await,
        Some((Protocol::Tls, _)) => Err(io::Error::other("TLS within TLS")),
    }
}
