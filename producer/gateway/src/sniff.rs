//! Detects the protocol of a connection by its first bytes.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    time::timeout,
};

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP/1.1.
    Http,
    /// TLS; the protocol inside it is detected again.
    Tls,
    /// The TCP line protocol.
    Lines,
}

const TLS_HANDSHAKE: u8 = 0x16;
/// Longer than any registered HTTP method.
const MAX_METHOD: usize = 24;

/// The protocol of a connection that starts with these bytes; `None` if more are needed.
///
/// HTTP starts with a method in capital letters and a space; JSON and `auth` do not. The preface of HTTP/2 looks like a
/// request of HTTP/1, whose server refuses it.
pub(super) fn classify(first: &[u8]) -> Option<Protocol> {
    if *first.first()? == TLS_HANDSHAKE {
        return Some(Protocol::Tls);
    }
    match first.iter().position(|byte| !(byte.is_ascii_uppercase() || *byte == b'-')) {
        Some(end) if end > 0 && first[end] == b' ' => Some(Protocol::Http),
        Some(_) => Some(Protocol::Lines),
        None => (first.len() > MAX_METHOD).then_some(Protocol::Lines),
    }
}

/// Reads until the protocol is known. `None` if the sender closes the connection or `deadline` passes.
pub(super) async fn sniff<S: AsyncRead + Unpin>(
    mut stream: S,
    deadline: Duration,
) -> io::Result<Option<(Protocol, Sniffed<S>)>> {
    let mut first = BytesMut::with_capacity(256);
    let deciding = async {
        loop {
            if stream.read_buf(&mut first).await? == 0 {
                return Ok::<_, io::Error>(None);
            }
            if let Some(protocol) = classify(&first) {
                return Ok(Some(protocol));
            }
        }
    };
    let Ok(decided) = timeout(deadline, deciding).await else { return Ok(None) };
    Ok(decided?.map(|protocol| (protocol, Sniffed { first: first.freeze(), stream })))
}

/// A stream that returns the bytes that were read for detection first.
pub(super) struct Sniffed<S> {
    first: Bytes,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Sniffed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let taken = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..taken]);
        self.first.advance(taken);
        if self.first.is_empty() {
            // An empty slice would keep the buffer alive.
            self.first = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sniffed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", Some(Protocol::Lines)),
            (b" POST", Some(Protocol::Lines)),
            (b"{\"device\"", Some(Protocol::Lines)),
            (b"[", Some(Protocol::Lines)),
            (b"\r\n", Some(Protocol::Lines)),
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
        let (protocol, mut rest) = sniff(stream, Duration::from_secs(1)).await.unwrap().unwrap();
        assert_eq!(protocol, Protocol::Http);
        let mut all = Vec::new();
        rest.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"POST /x");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_sender_is_dropped_at_the_deadline() {
        let (_silent, stream) = tokio::io::duplex(64);
        let sniffed = sniff(stream, Duration::from_secs(10)).await.unwrap();
        assert!(sniffed.is_none());
    }
}
