//! A stream whose reads pass the filter: Tokio's traits below it, those of futures above it, as lapin needs them.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_io::{AsyncRead, AsyncWrite};
use tokio::io::{self as tokio_io, ReadBuf};

use super::filter::FrameFilter;

/// Fewest bytes for which a read without the filter's buffer pays for its system call.
const MIN_DIRECT_READ: usize = 4096;

/// Filters reads; writes pass unchanged.
#[derive(Debug)]
pub(super) struct FrameStream<S> {
    inner: S,
    filter: FrameFilter,
}

impl<S> FrameStream<S> {
    pub(super) fn new(inner: S, filter: FrameFilter) -> Self {
        Self { inner, filter }
    }
}

impl<S: tokio_io::AsyncRead + Unpin> AsyncRead for FrameStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let Self { inner, filter } = self.get_mut();
        if into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            let output = filter.output();
            if !output.is_empty() {
                let count = output.len().min(into.len());
                into[..count].copy_from_slice(&output[..count]);
                filter.consume(count);
                return Poll::Ready(Ok(count));
            }
            let past = filter.may_read_past().min(into.len());
            if past >= MIN_DIRECT_READ {
                let count = ready!(read(inner, cx, &mut into[..past]))?;
                filter.read_past(count);
                return Poll::Ready(Ok(count));
            }
            let count = ready!(read(inner, cx, filter.space()))?;
            if count == 0 {
                // End of stream: an incomplete frame is dropped.
                return Poll::Ready(Ok(0));
            }
            filter.filled(count);
        }
    }
}

impl<S: tokio_io::AsyncWrite + Unpin> AsyncWrite for FrameStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, from)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, from)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

/// Reads once. Returns the number of bytes, 0 at the end of the stream.
fn read<S: tokio_io::AsyncRead + Unpin>(
    from: &mut S,
    cx: &mut Context<'_>,
    into: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut buffer = ReadBuf::new(into);
    ready!(Pin::new(from).poll_read(cx, &mut buffer))?;
    Poll::Ready(Ok(buffer.filled().len()))
}
