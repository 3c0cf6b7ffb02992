//! The first bytes of a connection decide what is spoken on it.

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

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP/1.1.
    Http,
    /// A TLS handshake; what is inside it is sniffed again.
    Tls,
    /// One JSON document a line.
    Lines,
}

const TLS_HANDSHAKE: u8 = 0x16;
/// Longer than any HTTP method that anybody registered.
const LONGEST_METHOD: usize = 24;

/// Decides by the bytes there are; `None` when more are needed.
///
/// HTTP begins with a method, capital letters and a space; JSON and `auth` do not. How HTTP/2 begins
/// looks the same, and is refused by HTTP/1 in words that its clients understand.
pub(super) fn classify(first: &[u8]) -> Option<Protocol> {
    if *first.first()? == TLS_HANDSHAKE {
        return Some(Protocol::Tls);
    }
    match first.iter().position(|byte| !(byte.is_ascii_uppercase() || *byte == b'-')) {
        Some(end) if end > 0 && first[end] == b' ' => Some(Protocol::Http),
        Some(_) => Some(Protocol::Lines),
        None => (first.len() > LONGEST_METHOD).then_some(Protocol::Lines),
    }
}

/// Reads until the protocol is clear. `None` when the sender closes or says nothing in time.
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

/// A stream whose first bytes were looked at and are read again.
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
            // An empty slice still holds the memory it is a slice of.
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
    fn the_first_bytes_decide() {
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
    async fn what_was_looked_at_is_read_again_even_when_it_came_in_pieces() {
        let begun = AsyncReadExt::chain(&b"PO"[..], &b"ST /"[..]);
        let stream = AsyncReadExt::chain(begun, &b"x"[..]);
        let (protocol, mut rest) = sniff(stream, Duration::from_secs(1)).await.unwrap().unwrap();
        assert_eq!(protocol, Protocol::Http);
        let mut all = Vec::new();
        rest.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"POST /x");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_sender_is_given_up() {
        let (_silent, stream) = tokio::io::duplex(64);
        let sniffed = sniff(stream, Duration::from_secs(10)).await.unwrap();
        assert!(sniffed.is_none());
    }
}
