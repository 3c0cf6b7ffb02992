//! Lines out of a stream of bytes.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::{Instant, timeout_at},
};

/// What the stream held next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A line without its line end.
    Line(Bytes),
    /// A line over the limit; it was read past and is gone.
    TooLong,
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
    /// Within a line that is over the limit.
    skipping: bool,
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

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Lines of at most `limit` bytes. `idle` bounds the silence between lines, `slow` the time that
    /// one line takes.
    pub(super) fn new(reader: R, limit: usize, idle: Duration, slow: Duration) -> Self {
        Self {
            reader,
            buffer: BytesMut::new(),
            searched: 0,
            room: LEAST,
            limit,
            skipping: false,
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
            if self.buffer.is_empty() {
                // What lines were cut from is let go of: their answers may be far off.
                self.buffer = BytesMut::new();
            }
            self.buffer.reserve(self.room);
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
                    self.skipping = true;
                }
                if self.skipping {
                    self.buffer.clear();
                    self.searched = 0;
                }
                if self.buffer.is_empty() && !self.skipping {
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
            if std::mem::take(&mut self.skipping) || line.len() > self.limit {
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
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);
    const SLOW: Duration = Duration::from_secs(5);

    async fn frames(input: &[u8]) -> Vec<Frame> {
        let mut lines = Lines::new(input, 8, IDLE, SLOW);
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

    #[tokio::test(start_paused = true)]
    async fn silence_and_a_line_in_drips_have_different_patience() {
        let (mut sender, receiver) = tokio::io::duplex(64);
        let mut lines = Lines::new(receiver, 64, IDLE, SLOW);
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
