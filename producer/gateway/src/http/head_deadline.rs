//! How long a connection may wait for a request, and how long the head of a request may take.
//!
//! hyper has one timeout for both, from the end of a response to the end of the next head. A connection that is kept
//! open would end with the short time that a head may take.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use scopeguard::guard;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// The number of requests that have begun and that have ended on a connection: odd while one is served.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<AtomicU64>);

/// A stream that ends if no request begins in time, and fails if a head does not end in time.
pub(super) struct HeadDeadline<S> {
    pub(super) stream: S,
    turns: Turns,
    /// Longest silence before the first byte of a request.
    idle: Duration,
    /// Longest time from the first byte of a request to the end of its head.
    head: Duration,
    /// The turn whose first bytes have arrived.
    begun: Option<u64>,
    /// What `deadline` is for: the turn, and whether its head has begun.
    awaited: Option<(u64, bool)>,
    deadline: Pin<Box<Sleep>>,
    /// Whether a head did not end in time.
    pub(super) is_late: bool,
}

impl Turns {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// A request is served until the returned value is dropped.
    pub(super) fn serving(&self) -> impl Sized + Send + use<> {
        let next = |turns: &Self| turns.0.fetch_add(1, Ordering::Relaxed);
        next(self);
        guard(self.clone(), move |turns| _ = next(&turns))
    }
}

impl<S> HeadDeadline<S> {
    pub(super) fn new(stream: S, turns: Turns, idle: Duration, head: Duration) -> Self {
        let deadline = Box::pin(sleep(idle));
        Self { stream, turns, idle, head, begun: None, awaited: None, deadline, is_late: false }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeadDeadline<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (turn, filled) = (this.turns.now(), buffer.filled().len());
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(cx, buffer) {
            if buffer.filled().len() > filled {
                this.begun = Some(turn);
            }
            return Poll::Ready(read);
        }
        if turn % 2 == 1 {
            // The body of a request has its own deadline.
            return Poll::Pending;
        }
        let awaited = (turn, this.begun == Some(turn));
        if this.awaited != Some(awaited) {
            this.awaited = Some(awaited);
            let limit = if awaited.1 { this.head } else { this.idle };
            this.deadline.as_mut().reset(Instant::now() + limit);
        }
        ready!(this.deadline.as_mut().poll(cx));
        if !awaited.1 {
            // As if the sender had closed the connection.
            return Poll::Ready(Ok(()));
        }
        this.is_late = true;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the head of a request did not end in time")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadDeadline<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
