//! Answers that nobody reads. A sender that asks and does not read may hold neither its connection for
//! ever nor memory: while an answer is stuck nothing more is read from it, and after a time it is given up.

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

/// A stream whose peer must read. Both halves have to be driven by one task.
pub(super) struct Unread<S> {
    stream: S,
    limit: Duration,
    /// Runs from the first write that found no room until everything is written.
    stuck: Option<Pin<Box<Sleep>>>,
    /// Whoever wanted to read meanwhile.
    reader: Option<Waker>,
    /// Whether something was refused, whose rest the peer may still be sending.
    refused: Arc<AtomicBool>,
    /// Runs from the end of what is written, while what the peer still sends is thrown away.
    linger: Option<Pin<Box<Sleep>>>,
}

/// How long a refused sender may go on before the connection is closed. Closed with bytes unread, it would be reset,
/// and the sender might lose the answer that says why.
const LINGER: Duration = Duration::from_secs(1);
/// What is thrown away between two looks at other connections.
const THROWN_AWAY_AT_ONCE: usize = 16;

impl<S: AsyncWrite + Unpin> Unread<S> {
    /// The peer may leave what is written unread for `limit`.
    pub(super) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, stuck: None, reader: None, refused: Arc::default(), linger: None }
    }

    /// The same, which reads past a refused request at the end.
    pub(super) fn lingering(self, refused: &Arc<AtomicBool>) -> Self {
        Self { refused: Arc::clone(refused), ..self }
    }

    /// What is put off begins the time; what then takes longer is over, also when a byte gets through now
    /// and then.
    fn in_time<T>(&mut self, outcome: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_pending() {
            let limit = self.limit;
            self.stuck.get_or_insert_with(|| Box::pin(sleep(limit)));
        }
        if self.stuck.as_mut().is_some_and(|stuck| stuck.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "answers are not read")));
        }
        outcome
    }
}

impl<S: AsyncRead + Unpin> Unread<S> {
    /// Throws away what the peer sends until it ends or time is up.
    fn linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if linger.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut piece = [MaybeUninit::uninit(); 4096];
        for _ in 0..THROWN_AWAY_AT_ONCE {
            let mut piece = ReadBuf::uninit(&mut piece);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece)) {
                Ok(()) if !piece.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Unread<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.stuck.is_some() {
            this.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut this.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Unread<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.in_time(written, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, pieces);
        this.in_time(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Who flushes has written everything.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        let flushed = ready!(this.in_time(flushed, cx));
        this.stuck = None;
        if let Some(reader) = this.reader.take() {
            reader.wake();
        }
        Poll::Ready(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            let ended = Pin::new(&mut this.stream).poll_shutdown(cx);
            ready!(this.in_time(ended, cx))?;
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
    async fn who_reads_nothing_is_given_up_also_when_a_byte_gets_through_now_and_then() {
        for drip in [false, true] {
            let (mut peer, ours) = duplex(64);
            let mut stream = Unread::new(ours, LIMIT);
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
                () = reading => unreachable!("it has no end"),
            };
            assert_eq!((error.kind(), begun.elapsed()), (io::ErrorKind::TimedOut, LIMIT));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_from_who_does_not_read_until_it_has() {
        let (mut peer, ours) = duplex(64);
        peer.write_all(b"more").await.unwrap();
        let mut stream = Unread::new(ours, LIMIT);
        let mut written = 0;
        let (mut asked, mut got) = ([0; 4], Vec::new());
        // One task does both, as a server of HTTP does.
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
        let stuck = std::future::poll_fn(|cx| Poll::Ready(serve.as_mut().poll(cx).is_pending())).await;
        assert!(stuck, "the answer has no room, and the request is not read");
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
