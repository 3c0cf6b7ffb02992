//! The stream of a sender: detects its protocol by the first bytes, and protects against senders that do not read.
//!
//! A sender may send requests and not read the answers. While a write is stalled, nothing is read from it, so that its
//! requests use no memory; after a timeout the connection is closed.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    time::{Sleep, sleep, timeout},
};

use crate::proxy_protocol;

/// A byte stream in both directions.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Transport for T {}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP/1.1.
    Http,
    /// TLS; the protocol inside it is detected again.
    Tls,
    /// Lines, in JSON or in InfluxDB's protocol.
    Lines,
}

const TLS_HANDSHAKE: u8 = 0x16;
/// Longer than any registered HTTP method.
const MAX_METHOD: usize = 24;
/// Size of the first read, in bytes.
const FIRST_READ: usize = 256;

/// The protocol of a connection that starts with these bytes; `None` if more are needed.
///
/// HTTP starts with a method in capital letters, a space and a target; JSON and commands do not. The preface of HTTP/2
/// looks like a request of HTTP/1, whose server refuses it.
pub(super) fn classify(first: &[u8]) -> Option<Protocol> {
    if *first.first()? == TLS_HANDSHAKE {
        return Some(Protocol::Tls);
    }
    // An empty line before a request is ignored (RFC 9112, section 2.2), as one among lines is.
    let first = match first {
        b"\r" => return None,
        _ => first.strip_prefix(b"\r\n").unwrap_or(first),
    };
    match first.iter().position(|byte| !(byte.is_ascii_uppercase() || *byte == b'-')) {
        Some(end) if end > 0 && first[end] == b' ' => classify_target(&first[..end], &first[end + 1..]),
        Some(_) => Some(Protocol::Lines),
        None => (first.len() > MAX_METHOD).then_some(Protocol::Lines),
    }
}

/// Distinguishes a request from a line of InfluxDB's protocol whose measurement looks like a method: `T value=1`. Only an
/// absolute target or its authority may have an equals sign before the first space, and none has a backslash.
fn classify_target(method: &[u8], target: &[u8]) -> Option<Protocol> {
    let is_absolute = |target: &[u8]| {
        let starts = |scheme: &[u8]| {
            target.len() >= scheme.len() && target[..scheme.len()].eq_ignore_ascii_case(scheme)
        };
        starts(b"http://") || starts(b"https://")
    };
    if matches!(target.first()?, b'/' | b'*') || method == b"CONNECT" || is_absolute(target) {
        return Some(Protocol::Http);
    }
    match target.iter().find(|byte| matches!(byte, b'=' | b'\\' | b' ' | b'\r' | b'\n')) {
        Some(b'=' | b'\\') => Some(Protocol::Lines),
        Some(_) => Some(Protocol::Http),
        None => (target.len() > FIRST_READ).then_some(Protocol::Http),
    }
}

/// A sender's stream. One task must drive both directions.
pub(super) struct ClientStream<S> {
    stream: S,
    /// Bytes that were read to detect the protocol and are not returned yet.
    first: BytesMut,
    /// How long a write may stall; `None` for no limit.
    write_timeout: Option<Duration>,
    /// Runs from the first write that was pending until a flush completes.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Wakes the reader when the stall ends.
    reader: Option<Waker>,
}

impl<S> ClientStream<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, first: BytesMut::new(), write_timeout: None, stalled: None, reader: None }
    }

    /// Fails if a write stalls for `limit`.
    pub(super) fn with_write_timeout(self, limit: Duration) -> Self {
        Self { write_timeout: Some(limit), ..self }
    }
}

impl<S: AsyncRead + Unpin> ClientStream<S> {
    /// Reads until the protocol is known. `None` if the sender closes the connection or `deadline` passes.
    pub(super) async fn sniff(&mut self, deadline: Duration) -> io::Result<Option<Protocol>> {
        let deciding = async {
            loop {
                // The first bytes may have arrived with a PROXY header.
                if let Some(protocol) = classify(&self.first) {
                    return Ok(Some(protocol));
                }
                if self.read_more().await? == 0 {
                    return Ok(None);
                }
            }
        };
        timeout(deadline, deciding).await.unwrap_or(Ok(None))
    }

    /// Reads the PROXY header at the start of the connection. Returns the sender's address; `None` for a connection of
    /// the proxy itself. Fails without a valid header before `deadline`.
    pub(super) async fn read_proxy_header(&mut self, deadline: Duration) -> io::Result<Option<SocketAddr>> {
        let reading = async {
            loop {
                if self.read_more().await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let header = proxy_protocol::parse(&self.first);
                if let Some(header) =
                    header.map_err(|problem| io::Error::new(io::ErrorKind::InvalidData, problem))?
                {
                    self.first.advance(header.length);
                    return Ok(header.source);
                }
            }
        };
        timeout(deadline, reading).await?
    }

    async fn read_more(&mut self) -> io::Result<usize> {
        self.first.reserve(FIRST_READ);
        self.stream.read_buf(&mut self.first).await
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.stalled.is_some() {
            this.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if this.first.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buffer);
        }
        let taken = this.first.len().min(buffer.remaining());
        buffer.put_slice(&this.first[..taken]);
        this.first.advance(taken);
        if this.first.is_empty() {
            // An empty slice would keep the buffer alive.
            this.first = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> ClientStream<S> {
    /// Starts the timeout at the first pending write. Partial writes do not restart it.
    fn check_stall<T>(&mut self, outcome: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_pending()
            && let Some(limit) = self.write_timeout
        {
            self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        }
        if self.stalled.as_mut().is_some_and(|stalled| stalled.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the peer does not read answers",
            )));
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.check_stall(written, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, pieces);
        this.check_stall(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// A completed flush means that everything is written: the stall ends.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        let flushed = ready!(this.check_stall(flushed, cx));
        this.stalled = None;
        if let Some(reader) = this.reader.take() {
            reader.wake();
        }
        Poll::Ready(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let ended = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.check_stall(ended, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncWriteExt, duplex},
        time::Instant,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn a_stalled_write_times_out_even_if_single_bytes_get_through() {
        for drip in [false, true] {
            let (mut peer, ours) = duplex(64);
            let mut stream = ClientStream::new(ours).with_write_timeout(LIMIT);
            let begun = Instant::now();
            let reading = async {
                if !drip {
                    std::future::pending::<()>().await;
                }
                loop {
                    tokio::time::sleep(LIMIT / 4).await;
                    let _ = peer.read_u8().await;
                }
            };
            let error = tokio::select! {
                written = stream.write_all(&[7; 1000]) => written.unwrap_err(),
                () = reading => unreachable!("it never ends"),
            };
            assert_eq!((error.kind(), begun.elapsed()), (io::ErrorKind::TimedOut, LIMIT));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_while_a_write_is_stalled() {
        let (mut peer, ours) = duplex(64);
        peer.write_all(b"more").await.unwrap();
        let mut stream = ClientStream::new(ours).with_write_timeout(LIMIT);
        let mut written = 0;
        let (mut asked, mut got) = ([0; 4], Vec::new());
        // One task reads and writes, as hyper does.
        let serve = std::future::poll_fn(|cx| {
            while written < 100 {
                match Pin::new(&mut stream).poll_write(cx, &[7; 100][written..]) {
                    Poll::Ready(count) => written += count?,
                    Poll::Pending => break,
                }
            }
            if written == 100 {
                ready!(Pin::new(&mut stream).poll_flush(cx))?;
            }
            ready!(Pin::new(&mut stream).poll_read(cx, &mut ReadBuf::new(&mut asked)))?;
            Poll::Ready(io::Result::Ok(written))
        });
        tokio::pin!(serve);
        let stalled = std::future::poll_fn(|cx| Poll::Ready(serve.as_mut().poll(cx).is_pending())).await;
        assert!(stalled, "the answer does not fit, and the request is not read");
        let read = async {
            while got.len() < 100 {
                peer.read_buf(&mut got).await.unwrap();
            }
        };
        let (served, ()) = tokio::join!(serve, read);
        assert_eq!(served.unwrap(), 100);
        assert_eq!(&asked, b"more");
    }

    #[test]
    fn the_first_bytes_determine_the_protocol() {
        for (first, protocol) in [
            (&b"POST /v1/readings HTTP/1.1\r\n"[..], Some(Protocol::Http)),
            (b"PRI * HTTP/2.0\r\n", Some(Protocol::Http)),
            (b"P", None),
            (b"PO", None),
            (b"POX", None),
            (b"POX\n", Some(Protocol::Lines)),
            (b"QUERY /v1", Some(Protocol::Http)),
            (b"M-SEARCH * HTTP/1.1", Some(Protocol::Http)),
            (b"POST ", None),
            (b"POST h", None),
            (b"POST http:/", None),
            (b"POST http:=1 2\n", Some(Protocol::Lines)),
            (b"POST http://x/?a=b", Some(Protocol::Http)),
            (b"POST nonsense HTTP/1.1", Some(Protocol::Http)),
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 5 8080\r\n", Some(Protocol::Http)),
            (b"T a\\ b=1", Some(Protocol::Lines)),
            (b"POST HTTPS://x/v1/readings HTTP/1.1", Some(Protocol::Http)),
            (b"CONNECT x:443 HTTP/1.1", Some(Protocol::Http)),
            (b"T value=1", Some(Protocol::Lines)),
            (b"POST value=1", Some(Protocol::Lines)),
            (b"CPU,host=a value=1", Some(Protocol::Lines)),
            (b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", Some(Protocol::Lines)),
            (b" POST", Some(Protocol::Lines)),
            (b"{\"device\"", Some(Protocol::Lines)),
            (b"[", Some(Protocol::Lines)),
            (b"\r", None),
            (b"\r\n", None),
            (b"\r\nPOST /v1/readings HTTP/1.1", Some(Protocol::Http)),
            (b"\r\n{", Some(Protocol::Lines)),
            (b"\r\n\r\n", Some(Protocol::Lines)),
            (b"\n", Some(Protocol::Lines)),
            (b"\x16\x03\x01", Some(Protocol::Tls)),
            (b"", None),
        ] {
            assert_eq!(classify(first), protocol, "{first:?}");
        }
    }

    #[tokio::test]
    async fn bytes_read_for_detection_are_returned_first() {
        let begun = AsyncReadExt::chain(&b"PO"[..], &b"ST /"[..]);
        let stream = AsyncReadExt::chain(begun, &b"x"[..]);
        let mut stream = ClientStream::new(stream);
        assert_eq!(stream.sniff(Duration::from_secs(1)).await.unwrap(), Some(Protocol::Http));
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"POST /x");
    }

    #[tokio::test]
    async fn bytes_after_a_proxy_header_are_those_of_the_sender() {
        let (header, rest) = (b"PROXY TCP4 192.0.2.1 10.0.0.1 5 8080\r\n", b"POST /x");
        for split in [1, 20, header.len(), header.len() + 2] {
            let all = [&header[..], rest].concat();
            let (first, second) = all.split_at(split);
            let mut stream = ClientStream::new(AsyncReadExt::chain(first, second));
            let sender = stream.read_proxy_header(Duration::from_secs(1)).await.unwrap();
            assert_eq!(sender, Some("192.0.2.1:5".parse().unwrap()));
            assert_eq!(stream.sniff(Duration::from_secs(1)).await.unwrap(), Some(Protocol::Http));
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, rest);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unfinished_proxy_header_is_refused_at_the_deadline() {
        let (mut proxy, stream) = duplex(64);
        proxy.write_all(b"PROXY TCP4 ").await.unwrap();
        let error = ClientStream::new(stream).read_proxy_header(LIMIT).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_sender_is_dropped_at_the_deadline() {
        let (_silent, stream) = tokio::io::duplex(64);
        let protocol = ClientStream::new(stream).sniff(Duration::from_secs(10)).await.unwrap();
        assert_eq!(protocol, None);
    }
}
