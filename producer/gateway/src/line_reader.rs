//! Reads lines within limits on their length, duration and memory.

use std::{io, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::{Instant, sleep, timeout_at},
};

use crate::memory::Reservation;

/// The next element of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A line without its line ending and without a byte-order mark at its start.
    Line(Bytes),
    /// A line above the length limit; its bytes are discarded.
    TooLong,
    /// A line without memory for it; its bytes are discarded.
    NoMemory,
    /// The sender has closed the stream. Bytes after its last line ending are discarded.
    End,
    /// No line started for the idle timeout.
    Idle,
    /// A line was not complete within the line timeout.
    Slow,
}

/// Reads lines. [`LineReader::next`] is cancellation safe.
pub(super) struct LineReader<R> {
    reader: R,
    buffer: BytesMut,
    /// Bytes at the start of the buffer without a line ending.
    searched: usize,
    /// Buffer space for the next read.
    room: usize,
    /// Set while the bytes of a line are discarded: the frame to return at its end.
    skipping: Option<Frame>,
    /// Reservation of the buffer above [`FREE`].
    memory: Reservation,
    idle: Duration,
    slow: Duration,
    /// Whether a line has started.
    in_line: bool,
    /// The lines that have ended, blank ones included.
    ended: u64,
    /// Whether a line waits while there is no memory for it, and is not discarded.
    patient: bool,
    /// When it started, else when the last line ended or its answer was written.
    since: Instant,
}

/// Smallest read, in bytes: enough for the line of a sensor. A silent connection has a buffer of this size.
const MIN_READ: usize = 512;
/// Largest read. The next read has room for twice the bytes of the last one.
const MAX_READ: usize = 16 * 1024;
/// Buffer size that needs no reservation.
const FREE: usize = 2 * MIN_READ;
/// How often a line that waits for memory looks for it.
const MEMORY_PAUSE: Duration = Duration::from_millis(100);

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// `idle` limits the silence between lines, `slow` the time of one line. The
    /// buffer is reserved in `memory`.
    pub(super) fn new(reader: R, idle: Duration, slow: Duration, memory: Reservation) -> Self {
        Self {
            reader,
            buffer: BytesMut::new(),
            searched: 0,
            room: MIN_READ,
            skipping: None,
            memory,
            idle,
            slow,
            in_line: false,
            ended: 0,
            patient: false,
            since: Instant::now(),
        }
    }

    /// From now on a line waits while there is no memory for it, and is not discarded. Its sender can then send no more.
    pub(super) fn wait_for_memory(&mut self) {
        self.patient = true;
    }

    /// The number of the line that ended last, counted from 1. Blank lines count.
    pub(super) fn number(&self) -> u64 {
        self.ended
    }

    /// Whether a line has started and not ended.
    pub(super) fn is_in_line(&self) -> bool {
        self.in_line
    }

    /// Returns the next frame, from the buffer or after further reads. A line may have `longest` bytes.
    pub(super) async fn next(&mut self, longest: usize) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.buffered(longest) {
                return Ok(frame);
            }
            let (limit, late) =
                if self.in_line { (self.slow, Frame::Slow) } else { (self.idle, Frame::Idle) };
            let deadline = self.since + limit;
            while !self.make_room() {
                if timeout_at(deadline, sleep(MEMORY_PAUSE)).await.is_err() {
                    return Ok(late);
                }
            }
            let Ok(read) = timeout_at(deadline, self.reader.read_buf(&mut self.buffer)).await else {
                return Ok(late);
            };
            let read = read?;
            if read == 0 {
                return Ok(Frame::End);
            }
            self.room = (2 * read).clamp(MIN_READ, MAX_READ);
        }
    }

    /// Reserves space for the next read: `room` bytes if the budget allows it, else [`MIN_READ`]. If even that exceeds
    /// [`FREE`], the current line is discarded, or there is no room yet (false).
    fn make_room(&mut self) -> bool {
        if self.buffer.is_empty() {
            // Lines share this buffer; their answers may be outstanding for long.
            self.drop_buffer();
        }
        if self.buffer.capacity() - self.buffer.len() >= self.room {
            return true;
        }
        // `BytesMut` doubles when it grows.
        let wanted = (self.buffer.len() + self.room).max(self.buffer.capacity() * 2);
        if self.memory.set(wanted.saturating_sub(FREE)).is_err() {
            self.room = MIN_READ;
            if self.buffer.len() + MIN_READ > FREE {
                if self.patient {
                    return false;
                }
                self.skipping.get_or_insert(Frame::NoMemory);
                self.drop_buffer();
            }
        }
        self.buffer.reserve(self.room);
        self.memory.shrink_to(self.buffer.capacity().saturating_sub(FREE));
        true
    }

    fn drop_buffer(&mut self) {
        self.buffer = BytesMut::new();
        self.searched = 0;
        self.memory.shrink_to(0);
    }

    /// Restarts the idle timeout: a sender that waits for an answer is not idle.
    pub(super) fn answered(&mut self) {
        if !self.in_line {
            self.since = Instant::now();
        }
    }

    /// Returns a frame if the buffer contains one.
    pub(super) fn buffered(&mut self, longest: usize) -> Option<Frame> {
        loop {
            let Some(end) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
                self.searched = self.buffer.len();
                if self.searched > longest {
                    self.skipping.get_or_insert(Frame::TooLong);
                }
                if self.skipping.is_some() {
                    self.buffer.clear();
                    self.searched = 0;
                }
                let in_line = !self.buffer.is_empty() || self.skipping.is_some();
                if in_line && !self.in_line {
                    self.since = Instant::now();
                }
                self.in_line = in_line;
                return None;
            };
            let mut line = self.buffer.split_to(self.searched + end + 1);
            self.searched = 0;
            self.in_line = false;
            self.ended += 1;
            self.since = Instant::now();
            line.truncate(line.len() - 1);
            if line.last() == Some(&b'\r') {
                line.truncate(line.len() - 1);
            }
            // Some Windows tools write a byte-order mark at the start of each file.
            if line.starts_with("\u{feff}".as_bytes()) {
                line.advance("\u{feff}".len());
            }
            if let Some(skipped) = self.skipping.take() {
                return Some(skipped);
            }
            if line.len() > longest {
                return Some(Frame::TooLong);
            }
            // A blank line keeps the connection open and gets no answer.
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
        let mut lines = LineReader::new(input, IDLE, SLOW, budget(1 << 20).empty());
        let mut frames = Vec::new();
        loop {
            let frame = lines.next(8).await.unwrap();
            if frame == Frame::End {
                return frames;
            }
            frames.push(frame);
        }
    }

    #[tokio::test]
    async fn lines_end_with_lf_or_crlf_and_blank_lines_are_ignored() {
        let line = |text: &'static str| Frame::Line(Bytes::from_static(text.as_bytes()));
        assert_eq!(frames(b"one\r\n\n  \ntwo\nrest").await, [line("one"), line("two")]);
    }

    #[tokio::test]
    async fn a_byte_order_mark_at_the_start_of_a_line_is_skipped() {
        let line = |text: &'static str| Frame::Line(Bytes::from_static(text.as_bytes()));
        let input = "\u{feff}one\n\u{feff}\n\u{feff}12345678\r\ntw\u{feff}o\n\u{feff}\u{feff}x\n";
        let expected = [line("one"), line("12345678"), line("tw\u{feff}o"), line("\u{feff}x")];
        assert_eq!(frames(input.as_bytes()).await, expected);
    }

    #[tokio::test]
    async fn a_line_above_the_limit_is_skipped_and_the_next_is_read() {
        let line = |text: &'static str| Frame::Line(Bytes::from_static(text.as_bytes()));
        let mut input = vec![b'x'; 100_000];
        input.extend(b"\n12345678\n123456789\nok\n");
        assert_eq!(frames(&input).await, [Frame::TooLong, line("12345678"), Frame::TooLong, line("ok")]);
    }

    #[tokio::test]
    async fn a_long_line_is_reserved_and_one_without_memory_is_skipped() {
        let budget = budget(100_000);
        let (mut sender, receiver) = tokio::io::duplex(1 << 20);
        let mut lines = LineReader::new(receiver, IDLE, SLOW, budget.empty());
        let mut send = async |line: &[u8]| {
            tokio::io::AsyncWriteExt::write_all(&mut sender, line).await.unwrap();
        };
        send(&[b'x'; 40_000]).await;
        assert!(lines.next(60_000).now_or_never().is_none());
        assert!((40_000 - FREE..75_000).contains(&budget.used()), "{}", budget.used());
        send(b"\nshort\n").await;
        assert!(matches!(lines.next(60_000).await.unwrap(), Frame::Line(line) if line.len() == 40_000));
        assert_eq!(lines.next(60_000).await.unwrap(), Frame::Line(Bytes::from_static(b"short")));
        assert!(lines.next(60_000).now_or_never().is_none());
        assert_eq!(budget.used(), 0, "an idle connection reserves nothing");

        let others = budget.reserve(70_000).unwrap();
        send(&[b'x'; 40_000]).await;
        send(b"\nshort\n").await;
        assert_eq!(lines.next(60_000).await.unwrap(), Frame::NoMemory);
        assert_eq!(lines.next(60_000).await.unwrap(), Frame::Line(Bytes::from_static(b"short")));
        drop((others, lines));
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_patient_reader_waits_for_memory_and_counts_every_line() {
        let budget = budget(100_000);
        let (mut sender, receiver) = tokio::io::duplex(1 << 20);
        let mut lines = LineReader::new(receiver, IDLE, SLOW, budget.empty());
        lines.wait_for_memory();
        let others = budget.reserve(70_000).unwrap();
        let long = [b"\n\nx\n", &[b'x'; 40_000][..], b"\n"].concat();
        tokio::io::AsyncWriteExt::write_all(&mut sender, &long).await.unwrap();
        assert_eq!(lines.next(60_000).await.unwrap(), Frame::Line(Bytes::from_static(b"x")));
        assert_eq!(lines.number(), 3);
        assert!(tokio::time::timeout(SLOW / 2, lines.next(60_000)).await.is_err());
        assert!(lines.is_in_line());
        drop(others);
        assert!(matches!(lines.next(60_000).await.unwrap(), Frame::Line(line) if line.len() == 40_000));
        assert_eq!((lines.number(), lines.is_in_line()), (4, false));

        assert!(lines.next(60_000).now_or_never().is_none());
        let _others = budget.reserve(55_000).unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut sender, &[b'x'; 40_000]).await.unwrap();
        assert_eq!(lines.next(60_000).await.unwrap(), Frame::Slow, "it does not wait without end");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_and_slow_lines_have_different_timeouts() {
        let (mut sender, receiver) = tokio::io::duplex(64);
        let mut lines = LineReader::new(receiver, IDLE, SLOW, budget(1 << 20).empty());
        let start = Instant::now();
        assert_eq!(lines.next(64).await.unwrap(), Frame::Idle);
        assert_eq!(start.elapsed(), IDLE);
        lines.answered();
        tokio::io::AsyncWriteExt::write_all(&mut sender, b"{").await.unwrap();
        let start = Instant::now();
        assert_eq!(lines.next(64).await.unwrap(), Frame::Slow);
        assert_eq!(start.elapsed(), SLOW);
    }
}
