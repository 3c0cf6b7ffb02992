//! A TCP proxy in front of the broker, which stalls and resets connections on command.

use std::{
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
};

use anyhow::{Context, Result};
use garenne_common::supervise::{self, TaskHandle};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// The port of an AMQP URL without a port.
const DEFAULT_AMQP_PORT: u16 = 5672;

/// A TCP proxy on the loopback interface. It resets its connections when dropped.
///
/// It cannot be used with TLS: the certificate names the server and not the proxy.
#[derive(Debug)]
pub(crate) struct FaultProxy {
    link: watch::Sender<Link>,
    address: SocketAddr,
    /// Aborted when the proxy is dropped.
    _accept_loop: TaskHandle<()>,
}

/// How the proxy treats connections.
#[derive(Debug, Default)]
struct Link {
    /// Connections stay open, and no byte passes in either direction.
    is_stalled: bool,
    /// Incremented to reset the connections that are open now.
    generation: u64,
}

impl FaultProxy {
    /// Starts a proxy in front of the server of an AMQP URL, and returns that URL with the proxy's address in it.
    pub(crate) async fn for_url(url: &str) -> Result<(Self, String)> {
        let server = parse(url)?;
        let host = server.host_str().context("the broker's URL has no host")?;
        let server = format!("{host}:{}", server.port().unwrap_or(DEFAULT_AMQP_PORT));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let through_proxy = through(url, address)?;
        let link = watch::Sender::default();
        let accept_loop = accept(listener, server, link.subscribe());
        let _accept_loop = supervise::isolated("fault proxy", accept_loop).spawn();
        Ok((Self { link, address, _accept_loop }, through_proxy))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets no byte pass until [`reset`](Self::reset). Connections stay open, and new ones are accepted: half-open
    /// connections, which only a heartbeat or a timeout detects.
    pub(crate) fn stall(&self) {
        self.link.send_modify(|link| link.is_stalled = true);
    }

    /// Resets the open connections. The bytes of new ones pass.
    pub(crate) fn reset(&self) {
        self.link.send_modify(|link| *link = Link { is_stalled: false, generation: link.generation + 1 });
    }
}

fn parse(url: &str) -> Result<reqwest::Url> {
    reqwest::Url::parse(url).context("the broker's URL is invalid")
}

/// The AMQP URL with the address of a proxy in it. The error does not show the URL.
pub(crate) fn through(url: &str, proxy: SocketAddr) -> Result<String> {
    let mut url = parse(url)?;
    url.set_ip_host(proxy.ip()).ok().context("cannot set the proxy's address")?;
    url.set_port(Some(proxy.port())).ok().context("cannot set the proxy's port")?;
    Ok(url.into())
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.reset();
    }
}

async fn accept(listener: TcpListener, server: String, link: watch::Receiver<Link>) {
    // After an error, such as no free file descriptors, clients are refused and report that.
    while let Ok((client, _)) = listener.accept().await {
        // Resets before this connection was accepted do not apply to it.
        let generation = link.borrow().generation;
        let connection = forward(client, server.clone(), link.clone(), generation);
        supervise::isolated("fault proxy connection", connection).spawn().detach();
    }
}

/// Forwards one connection until both sides have closed it or the proxy resets it.
async fn forward(mut client: TcpStream, server: String, mut link: watch::Receiver<Link>, generation: u64) {
    let mut upstream = None;
    let closed = {
        let mut copy = pin!(async {
            let upstream = upstream.insert(TcpStream::connect(server).await?);
            copy_bidirectional(&mut client, upstream).await
        });
        loop {
            let is_due = |link: &Link| !link.is_stalled || link.generation != generation;
            let is_reset = link.wait_for(is_due).await.is_ok_and(|link| link.generation != generation);
            if is_reset {
                break false;
            }
            // A stalled connection is not polled, so none of its bytes pass.
            tokio::select! {
                biased;
                _ = link.changed() => {}
                copied = &mut copy => break copied.is_ok(),
            }
        }
    };
    if !closed {
        // The close becomes a TCP reset. A reset discards unsent bytes, such as the last frame of an orderly close, so
        // connections that both sides closed are not reset.
        for stream in upstream.iter().chain([&client]) {
            let _ = stream.set_zero_linger();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, time::Duration};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::timeout,
    };

    use super::*;

    /// A proxy in front of an echo server, and a connection to it.
    async fn echo() -> (FaultProxy, String, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        let (proxy, url) = FaultProxy::for_url(&format!("amqp://u:p@{server}/%2f")).await.unwrap();
        let address = url.strip_prefix("amqp://u:p@").unwrap().strip_suffix("/%2f").unwrap().to_owned();
        let stream = TcpStream::connect(&address).await.unwrap();
        (proxy, address, stream)
    }

    async fn round_trip(stream: &mut TcpStream) {
        stream.write_all(b"echo").await.unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"echo");
    }

    #[tokio::test]
    async fn a_stalled_connection_is_silent_until_it_is_reset() {
        let (proxy, address, mut stream) = echo().await;
        round_trip(&mut stream).await;
        proxy.stall();
        stream.write_all(b"lost").await.unwrap();
        let mut accepted = TcpStream::connect(&address).await.unwrap();
        timeout(Duration::from_millis(100), stream.read_u8()).await.unwrap_err();
        proxy.reset();
        for stream in [&mut stream, &mut accepted] {
            assert_eq!(stream.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        let mut next = TcpStream::connect(&address).await.unwrap();
        round_trip(&mut next).await;
        drop(proxy);
        assert_eq!(next.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn an_orderly_close_is_forwarded_after_the_last_byte() {
        let (_proxy, _, mut stream) = echo().await;
        let sent = vec![7; 1 << 20];
        let (mut from, mut to) = stream.split();
        let send = async {
            to.write_all(&sent).await?;
            to.shutdown().await
        };
        let mut back = Vec::new();
        tokio::try_join!(send, from.read_to_end(&mut back)).unwrap();
        assert!(back == sent, "{} of {} bytes came back", back.len(), sent.len());
    }

    #[tokio::test]
    async fn a_url_is_not_shown_in_an_error() {
        let error = FaultProxy::for_url("amqp://user:secret@host:port/").await.unwrap_err();
        assert!(!format!("{error:#}").contains("secret"), "{error:#}");
    }
}
