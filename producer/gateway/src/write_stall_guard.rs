//! Protects against senders that send requests and do not read the answers. While a write is stalled, nothing is read
//! from the sender, so that its requests use no memory; after a timeout the connection is closed.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// A stream that fails if its peer does not read. One task must drive both directions.
pub(super) struct WriteStallGuard<S> {
    stream: S,
    limit: Duration,
    /// Runs from the first write that was pending until a flush completes.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Wakes the reader when the stall ends.
    reader: Option<Waker>,
    /// Set if a request was refused whose body the peer may still be sending.
    refused: Arc<AtomicBool>,
    /// Runs after the last write, while bytes of the peer are discarded.
    linger: Option<Pin<Box<Sleep>>>,
}

/// How long the connection of a refused sender stays open after the answer. A socket that is closed with unread bytes
/// is reset, and the sender may lose the answer.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// Reads that are discarded before other tasks of this thread get a turn.
const DISCARDED_READS: usize = 16;

impl<S: AsyncWrite + Unpin> WriteStallGuard<S> {
    /// Fails if a write stalls for `limit`.
    pub(super) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, stalled: None, reader: None, refused: Arc::default(), linger: None }
    }

    /// Discards the rest of a refused request at shutdown, if `refused` is set.
    pub(super) fn with_linger(self, refused: &Arc<AtomicBool>) -> Self {
        Self { refused: Arc::clone(refused), ..self }
    }

    /// Starts the timeout at the first pending write. Partial writes do not restart it.
    fn check_stall<T>(&mut self, outcome: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_pending() {
            let limit = self.limit;
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

impl<S: AsyncRead + Unpin> WriteStallGuard<S> {
    /// Discards bytes of the peer until it closes the stream or the timeout passes.
    fn linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER_TIMEOUT)));
        if linger.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut chunk = [MaybeUninit::uninit(); 4096];
        for _ in 0..DISCARDED_READS {
            let mut chunk = ReadBuf::uninit(&mut chunk);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut chunk)) {
                Ok(()) if !chunk.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WriteStallGuard<S> {
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
        Pin::new(&mut this.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteStallGuard<S> {
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
        if this.linger.is_none() {
            let ended = Pin::new(&mut this.stream).poll_shutdown(cx);
            ready!(this.check_stall(ended, cx))?;
        }
        if this.refused.load(Ordering::Relaxed) {
            ready!(this.linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::Instant,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn a_stalled_write_times_out_even_if_single_bytes_get_through() {
        for drip in [false, true] {
            let (mut peer, ours) = duplex(64);
            let mut stream = WriteStallGuard::new(ours, LIMIT);
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
        let mut stream = WriteStallGuard::new(ours, LIMIT);
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
}
