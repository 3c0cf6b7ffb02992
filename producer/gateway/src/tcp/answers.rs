//! Answers that a sender may leave unread.

use std::{convert::Infallible, io, time::Duration};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use crate::memory::Reservation;

/// Most bytes of answers that are kept until the sender reads.
const MAX_KEPT: usize = 4 * 1024;

/// Writes answers as the sender reads them. Nothing waits for it: while the sender does not read, some answers are kept
/// and the others are discarded.
pub(super) struct Answers<W> {
    writer: W,
    kept: BytesMut,
    memory: Reservation,
    is_flushed: bool,
    /// The sender has closed its side; nothing can be written.
    is_closed: bool,
}

impl<W: AsyncWrite + Unpin> Answers<W> {
    pub(super) fn new(writer: W, memory: Reservation) -> Self {
        Self { writer, kept: BytesMut::new(), memory, is_flushed: true, is_closed: false }
    }

    /// Keeps a line for the sender, if there is room for it.
    pub(super) fn add(&mut self, line: &str) {
        let needed = line.len() + 1;
        let has_room = self.kept.len() + needed <= MAX_KEPT && self.memory.set(MAX_KEPT).is_ok();
        if has_room && !self.is_closed {
            self.kept.reserve(needed);
            self.kept.extend_from_slice(line.as_bytes());
            self.kept.extend_from_slice(b"\n");
        }
    }

    /// Writes what is kept as the sender reads it. Never ends; may be dropped at any time.
    pub(super) async fn write(&mut self) -> Infallible {
        // An error is that of a sender that reads no answers. Its lines are read all the same.
        if self.write_all().await.is_err() {
            self.is_closed = true;
            self.kept.clear();
        }
        std::future::pending().await
    }

    async fn write_all(&mut self) -> io::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        while self.kept.has_remaining() {
            self.is_flushed = false;
            self.writer.write_buf(&mut self.kept).await?;
        }
        self.kept = BytesMut::new();
        self.memory.shrink_to(0);
        if !self.is_flushed {
            // TLS buffers what the socket did not take.
            self.writer.flush().await?;
            self.is_flushed = true;
        }
        Ok(())
    }

    /// Writes what is kept and closes the connection, within `limit`.
    pub(super) async fn close(mut self, limit: Duration) -> io::Result<()> {
        let closing = async {
            self.write_all().await?;
            self.writer.shutdown().await
        };
        timeout(limit, closing).await.unwrap_or(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use garenne_common::config::Size;
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;
    use crate::{limits::Limits, memory::MemoryBudget};

    #[tokio::test]
    async fn answers_that_are_not_read_are_bounded_and_whole() {
        let budget = MemoryBudget::new(&Limits { memory_budget: Size::mib(1), ..Limits::default() });
        let (ours, mut sender) = duplex(16);
        let mut answers = Answers::new(ours, budget.empty());
        for n in 0..10_000 {
            answers.add(&format!("error x line {n}: y"));
            assert!(answers.write().now_or_never().is_none());
        }
        assert!(answers.kept.capacity() <= 2 * MAX_KEPT && budget.used() == MAX_KEPT);
        let mut read = String::new();
        let reading = sender.read_to_string(&mut read);
        let (closed, count) = tokio::join!(answers.close(Duration::from_secs(5)), reading);
        closed.unwrap();
        let count = count.unwrap();
        assert!((MAX_KEPT - 100..MAX_KEPT + 32).contains(&count), "{count}");
        for (n, line) in read.lines().enumerate() {
            assert_eq!(line, format!("error x line {n}: y"));
        }
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_sender_that_closes_its_side_gets_no_answer() {
        let budget = MemoryBudget::new(&Limits::default());
        let (ours, sender) = duplex(16);
        drop(sender);
        let mut answers = Answers::new(ours, budget.empty());
        answers.add("error x");
        assert!(answers.write().now_or_never().is_none());
        answers.add("error x");
        assert!(answers.kept.is_empty());
    }
}
