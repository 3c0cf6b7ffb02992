//! One sensor connection, from its first byte to its last.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use super::{
    accept::Parts,
    http,
    sniff::{Protocol, sniff},
    tcp,
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
    /// Held to the end, by servers that wait for it that way.
    pub(super) tracked: Option<TaskTrackerToken>,
}

impl Connection {
    /// Serves it to its end. What goes wrong on it concerns nobody else.
    pub async fn serve(self) {
        let Self { stream, peer, parts, router, stop, tracked: _tracked } = self;
        // Receipts are small and awaited one by one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "no TCP_NODELAY");
        }
        if let Err(error) = speak(stream, &parts, router, &stop).await {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }

    /// Says in the sender's own protocol that there is no place for it, if it says quickly enough
    /// what it speaks.
    pub(super) async fn turn_away(self) -> io::Result<()> {
        let wait = std::time::Duration::from_secs(1);
        let Some((protocol, mut stream)) = sniff(self.stream, wait).await? else { return Ok(()) };
        let seconds = self.parts.limits.retry_after.as_secs().max(1);
        let answer = match protocol {
            Protocol::Tls => return Ok(()),
            Protocol::Lines => "error busy too many connections\n".to_owned(),
            Protocol::Http => {
                let body = format!(
                    r#"{{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"too many connections ({})","code":"busy"}}"#,
                    self.parts.limits.max_connections
                );
                format!(
                    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: {seconds}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
        };
        tokio::time::timeout(wait, async {
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await
        })
        .await
        .unwrap_or(Ok(()))
    }
}

async fn speak(
    stream: impl Transport + 'static,
    parts: &Arc<Parts>,
    router: axum::Router,
    stop: &CancellationToken,
) -> io::Result<()> {
    let sniffed = tokio::select! {
        sniffed = sniff(stream, parts.limits.first_byte_timeout) => sniffed?,
        () = stop.cancelled() => return Ok(()),
    };
    let Some((protocol, stream)) = sniffed else { return Ok(()) };
    match protocol {
        Protocol::Http => http::serve(stream, router, parts, stop).await.map_err(io::Error::other),
        Protocol::Lines => tcp::serve(stream, parts, stop).await,
        Protocol::Tls => Err(io::Error::other("TLS spoken on a port without a certificate (--tls-cert)")),
    }
}
