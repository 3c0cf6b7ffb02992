//! Lines out of a stream of bytes.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::{Instant, timeout_at},
};

use crate::memory::Reservation;

/// What the stream held next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A line without its line end.
    Line(Bytes),
    /// A line over the limit; it was read past and is gone.
    TooLong,
    /// A line that there was no memory for; it was read past and is gone.
    NoMemory,
    /// The sender has closed; what it sent after its last line end is no line.
    End,
    /// Nothing came for too long.
    Idle,
    /// A line was begun and not ended in time.
    Slow,
}

/// Reads lines. [`Lines::next`] may be dropped at any await: nothing read is lost.
pub(super) struct Lines<R> {
    reader: R,
    buffer: BytesMut,
    /// Bytes at the buffer's start that are known to hold no line end.
    searched: usize,
    limit: usize,
    /// What the next read asks for.
    room: usize,
    /// Within a line that is read past, and what it will be answered with.
    skipping: Option<Frame>,
    /// What the buffer holds beyond [`FREE`].
    memory: Reservation,
    idle: Duration,
    slow: Duration,
    silent_since: Instant,
    /// When the line at hand began.
    begun: Option<Instant>,
}

/// What a read asks for at least: room for a sensor's line, and what a silent connection costs.
const LEAST: usize = 512;
/// What it asks for at most, once a sender has filled what was asked for.
const MOST: usize = 16 * 1024;
/// What each connection's buffer may hold without a reservation.
const FREE: usize = 2 * LEAST;

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Lines of at most `limit` bytes. `idle` bounds the silence between lines, `slow` the time that
    /// one line takes. The buffer is reserved in `memory`.
    pub(super) fn new(reader: R, limit: usize, idle: Duration, slow: Duration, memory: Reservation) -> Self {
        Self {
            reader,
            buffer: BytesMut::new(),
            searched: 0,
            room: LEAST,
            limit,
            skipping: None,
            memory,
            idle,
            slow,
            silent_since: Instant::now(),
            begun: None,
        }
    }

    /// The next frame, from what was read already or by reading on.
    pub(super) async fn next(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.buffered() {
                return Ok(frame);
            }
            let (deadline, late) = match self.begun {
                Some(begun) => (begun + self.slow, Frame::Slow),
                None => (self.silent_since + self.idle, Frame::Idle),
            };
            self.make_room();
            let Ok(read) = timeout_at(deadline, self.reader.read_buf(&mut self.buffer)).await else {
                return Ok(late);
            };
            let read = read?;
            if read == 0 {
                return Ok(Frame::End);
            }
            self.room = if read >= self.room { (self.room * 2).min(MOST) } else { read.clamp(LEAST, MOST) };
        }
    }

    /// Lines are of at most so many bytes from the next one on.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Room for the next read: as much as it asks for where there is memory for that, else the least. A line that
    /// has no room even then is read past.
    fn make_room(&mut self) {
        if self.buffer.is_empty() {
            // What lines were cut from is let go of: their answers may be far off.
            self.drop_buffer();
        }
        if self.buffer.capacity() - self.buffer.len() >= self.room {
            return;
        }
        // A buffer that grows doubles.
        let wanted = (self.buffer.len() + self.room).max(self.buffer.capacity() * 2);
        if self.memory.set(wanted.saturating_sub(FREE)).is_err() {
            self.room = LEAST;
            if self.buffer.len() + LEAST > FREE {
                self.skipping.get_or_insert(Frame::NoMemory);
                self.drop_buffer();
            }
        }
        self.buffer.reserve(self.room);
        self.memory.shrink_to(self.buffer.capacity().saturating_sub(FREE));
    }

    fn drop_buffer(&mut self) {
        self.buffer = BytesMut::new();
        self.searched = 0;
        self.memory.shrink_to(0);
    }

    /// A sender that waits for an answer is not idle: silence counts from here.
    pub(super) fn answered(&mut self) {
        self.silent_since = Instant::now();
    }

    /// A frame that needs no more bytes.
    fn buffered(&mut self) -> Option<Frame> {
        loop {
            let Some(end) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
                self.searched = self.buffer.len();
                if self.searched > self.limit {
                    self.skipping.get_or_insert(Frame::TooLong);
                }
                if self.skipping.is_some() {
                    self.buffer.clear();
                    self.searched = 0;
                }
                if self.buffer.is_empty() && self.skipping.is_none() {
                    self.begun = None;
                } else {
                    self.begun.get_or_insert_with(Instant::now);
                }
                return None;
            };
            let mut line = self.buffer.split_to(self.searched + end + 1);
            self.searched = 0;
            self.begun = None;
            self.silent_since = Instant::now();
            line.truncate(line.len() - 1);
            if line.last() == Some(&b'\r') {
                line.truncate(line.len() - 1);
            }
            if let Some(skipped) = self.skipping.take() {
                return Some(skipped);
            }
            if line.len() > self.limit {
                return Some(Frame::TooLong);
            }
            // A blank line keeps a connection alive and asks for nothing.
            if line.iter().any(|byte| !byte.is_ascii_whitespace()) {
                return Some(Frame::Line(line.freeze()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use garenne_common::config::Size;

    use super::*;
    use crate::{limits::Limits, memory::MemoryBudget};

    const IDLE: Duration = Duration::from_secs(60);
    const SLOW: Duration = Duration::from_secs(5);

    fn budget(bytes: u64) -> MemoryBudget {
        MemoryBudget::new(&Limits { memory_budget: Size(bytes), ..Limits::default() })
    }

    async fn frames(input: &[u8]) -> Vec<Frame> {
        let mut lines = Lines::new(input, 8, IDLE, SLOW, budget(1 << 20).empty());
        let mut frames = Vec::new();
        loop {
            let frame = lines.next().await.unwrap();
            if frame == Frame::End {
                return frames;
            }
            frames.push(frame);
        }
    }

    #[tokio::test]
    async fn lines_end_with_lf_or_crlf_and_blank_ones_do_not_count() {
        let line = |text: &'static str| Frame::Line(Bytes::from_static(text.as_bytes()));
        assert_eq!(frames(b"one\r\n\n  \ntwo\nrest").await, [line("one"), line("two")]);
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_skipped_and_the_next_is_read() {
        let line = |text: &'static str| Frame::Line(Bytes::from_static(text.as_bytes()));
        let mut input = vec![b'x'; 100_000];
        input.extend(b"\n12345678\n123456789\nok\n");
        assert_eq!(frames(&input).await, [Frame::TooLong, line("12345678"), Frame::TooLong, line("ok")]);
    }

    #[tokio::test]
    async fn a_long_line_is_reserved_and_one_without_memory_is_skipped() {
        let budget = budget(100_000);
        let (mut sender, receiver) = tokio::io::duplex(1 << 20);
        let mut lines = Lines::new(receiver, 60_000, IDLE, SLOW, budget.empty());
        let mut send = async |line: &[u8]| {
            tokio::io::AsyncWriteExt::write_all(&mut sender, line).await.unwrap();
        };
        send(&[b'x'; 40_000]).await;
        assert!(lines.next().now_or_never().is_none());
        assert!((40_000 - FREE..75_000).contains(&budget.used()), "{}", budget.used());
        send(b"\nshort\n").await;
        assert!(matches!(lines.next().await.unwrap(), Frame::Line(line) if line.len() == 40_000));
        assert_eq!(lines.next().await.unwrap(), Frame::Line(Bytes::from_static(b"short")));
        assert!(lines.next().now_or_never().is_none());
        assert_eq!(budget.used(), 0, "an idle connection holds nothing");

        let others = budget.reserve(70_000).unwrap();
        send(&[b'x'; 40_000]).await;
        send(b"\nshort\n").await;
        assert_eq!(lines.next().await.unwrap(), Frame::NoMemory);
        assert_eq!(lines.next().await.unwrap(), Frame::Line(Bytes::from_static(b"short")));
        drop((others, lines));
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_and_a_line_in_drips_have_different_patience() {
        let (mut sender, receiver) = tokio::io::duplex(64);
        let mut lines = Lines::new(receiver, 64, IDLE, SLOW, budget(1 << 20).empty());
        let start = Instant::now();
        assert_eq!(lines.next().await.unwrap(), Frame::Idle);
        assert_eq!(start.elapsed(), IDLE);
        lines.answered();
        tokio::io::AsyncWriteExt::write_all(&mut sender, b"{").await.unwrap();
        let start = Instant::now();
        assert_eq!(lines.next().await.unwrap(), Frame::Slow);
        assert_eq!(start.elapsed(), SLOW);
    }
}
