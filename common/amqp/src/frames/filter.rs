//! The filter, independent of I/O.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use amq_protocol::protocol::constants::{FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD};
use bytes::{Buf, Bytes};
use garenne_protocol::topology::BrokerVersion;

use super::{
    check::{Problem, check},
    method,
    repair::repaired,
};

/// Size of the read buffer, in bytes. It grows only while a larger header frame arrives.
const BUFFER: usize = 64 * 1024;
/// Least free space for a read, in bytes.
const MIN_READ: usize = 16 * 1024;
/// Most bytes buffered of one frame. By default, a broker's frames have at most 131,072 bytes plus the headers that
/// dead-lettering adds. Of a larger header frame, the first part is repaired and the rest dropped.
const MAX_KEPT: usize = 256 * 1024;
/// Smallest frame_max that AMQP allows, in bytes.
const MIN_FRAME_MAX: usize = 4096;

/// Type, channel and size before the payload.
const PREFIX: usize = 7;
/// The prefix and the end octet.
const OVERHEAD: usize = PREFIX + 1;

/// Passes on a broker's frames and replaces those that lapin cannot parse. Bytes enter through
/// [`FrameFilter::space`] and [`FrameFilter::filled`], and leave through [`FrameFilter::output`] and
/// [`FrameFilter::consume`].
#[derive(Debug, Default)]
pub struct FrameFilter {
    buffer: Vec<u8>,
    /// `buffer[start..end]` was read and not handed out.
    start: usize,
    /// `buffer[start..passed]` was checked and may be handed out.
    passed: usize,
    end: usize,
    /// Number of bytes after `passed` that belong to the current frame and need no check.
    skip: usize,
    /// Number of bytes after `passed` that belong to a replaced frame and are dropped.
    discard: usize,
    /// Rest of the replacement of a frame. It is handed out before anything else.
    replacement: Bytes,
    /// The stream has no AMQP framing (any more): everything is passed on, and lapin refuses it.
    raw: bool,
    frame_max: usize,
    /// Channels whose next content header belongs to a method that was replaced, and why it was.
    replaced_methods: HashMap<u16, Problem>,
    version: Arc<OnceLock<BrokerVersion>>,
}

/// A frame's prefix.
#[derive(Clone, Copy)]
struct Prefix {
    kind: u8,
    channel: u16,
    /// Size of the whole frame, in bytes.
    total: usize,
}

impl Prefix {
    fn read(bytes: &[u8]) -> Option<Self> {
        let [kind, c1, c0, size @ ..] = *bytes.first_chunk::<PREFIX>()?;
        let size = usize::try_from(u32::from_be_bytes(size)).unwrap_or(usize::MAX);
        let total = size.saturating_add(OVERHEAD);
        Some(Self { kind, channel: u16::from_be_bytes([c1, c0]), total })
    }
}

impl FrameFilter {
    /// A filter for a client that offers `frame_max` bytes (0: no limit). `version` is set when the broker's
    /// `connection.start` has passed.
    pub fn new(frame_max: u32, version: Arc<OnceLock<BrokerVersion>>) -> Self {
        let mut filter = Self { frame_max: MAX_KEPT, version, ..Self::default() };
        filter.limit(frame_max);
        filter
    }

    /// Lowers `frame_max`: the smaller limit holds, as in lapin's negotiation.
    fn limit(&mut self, frame_max: u32) {
        let limit = usize::try_from(frame_max).unwrap_or(usize::MAX);
        if limit > 0 {
            self.frame_max = self.frame_max.min(limit.max(MIN_FRAME_MAX));
        }
    }

    /// Space to read into, never empty. Call [`FrameFilter::filled`] with the number of bytes read.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.passed, self.end) = (0, 0, 0);
            if self.buffer.len() != BUFFER {
                self.buffer = vec![0; BUFFER];
            }
        } else if self.buffer.len() - self.end < MIN_READ {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.passed, self.end) = (self.passed - self.start, self.end - self.start);
            self.start = 0;
            if self.buffer.len() - self.end < MIN_READ {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        &mut self.buffer[self.end..]
    }

    /// Reports that `count` bytes were read into [`FrameFilter::space`].
    pub fn filled(&mut self, count: usize) {
        self.end += count;
    }

    /// The bytes to hand out now; empty if more must be read first.
    pub fn output(&mut self) -> &[u8] {
        if self.replacement.is_empty() && self.passed == self.start {
            self.scan();
        }
        if self.replacement.is_empty() { &self.buffer[self.start..self.passed] } else { &self.replacement }
    }

    /// Reports that `count` bytes of [`FrameFilter::output`] were handed out.
    pub fn consume(&mut self, count: usize) {
        if self.replacement.is_empty() {
            self.start += count;
        } else {
            self.replacement.advance(count);
        }
    }

    /// How many of the broker's next bytes need no check and can be read directly, without the buffer. Call
    /// [`FrameFilter::read_past`] with the number of bytes that were.
    pub fn may_read_past(&self) -> usize {
        if self.start < self.end || !self.replacement.is_empty() {
            0
        } else if self.raw {
            usize::MAX
        } else {
            self.skip
        }
    }

    /// Reports that `count` bytes were read without the buffer.
    pub fn read_past(&mut self, count: usize) {
        self.skip = self.skip.saturating_sub(count);
    }

    /// Advances `passed` up to the end or to a frame that must be replaced, and replaces that frame if nothing is
    /// to be handed out before it.
    fn scan(&mut self) {
        self.discard();
        while self.passed < self.end {
            if self.raw {
                self.passed = self.end;
                return;
            }
            if self.skip > 0 {
                let count = self.skip.min(self.end - self.passed);
                self.skip -= count;
                self.passed += count;
                continue;
            }
            // A broker's answer to an unsupported protocol version, or no AMQP at all.
            if !matches!(self.buffer[self.passed], FRAME_METHOD | FRAME_HEADER | FRAME_BODY | FRAME_HEARTBEAT)
            {
                self.raw = true;
                continue;
            }
            let Some(prefix) = Prefix::read(&self.buffer[self.passed..self.end]) else { return };
            let more = match prefix.kind {
                FRAME_METHOD => self.method(prefix),
                FRAME_HEADER => self.header(prefix),
                _ => {
                    self.skip = prefix.total;
                    true
                }
            };
            if !more {
                return;
            }
        }
    }

    /// Drops the rest of a frame that was replaced.
    fn discard(&mut self) {
        let count = self.discard.min(self.end - self.passed);
        if count > 0 {
            self.discard -= count;
            self.start += count;
            self.passed = self.start;
        }
    }

    /// The current frame's payload, if the frame is complete. A wrong end octet sets `raw`.
    fn whole(&mut self, prefix: Prefix) -> Option<&[u8]> {
        let frame = self.buffer[self.passed..self.end].get(..prefix.total)?;
        let (end, frame) = frame.split_last()?;
        self.raw |= *end != FRAME_END;
        Some(&frame[PREFIX..])
    }

    /// Checks a method frame; true if the scan continues.
    fn method(&mut self, prefix: Prefix) -> bool {
        if prefix.total > MAX_KEPT {
            // No broker sends a method of this size.
            self.raw = true;
            return true;
        }
        let Some(payload) = self.whole(prefix) else { return false };
        let Some(id) = method::id(payload) else {
            self.skip = prefix.total;
            return true;
        };
        let bad = method::not_utf8(id, payload);
        if let Some(name) = bad
            && let Some(payload) = method::rewritten(id, payload)
        {
            return self.replace(prefix, |filter| {
                if method::has_content(id) {
                    filter.replaced_methods.insert(prefix.channel, Problem::NotUtf8(name));
                }
                method_frame(prefix.channel, &payload)
            });
        }
        match id {
            method::START => {
                if let Some(version) = method::version(payload) {
                    // Fails if set before: a connection has one `connection.start`.
                    let _ = self.version.set(version);
                }
            }
            method::TUNE => {
                if let Some(frame_max) = method::frame_max(payload) {
                    self.limit(frame_max);
                }
            }
            _ => {}
        }
        self.skip = prefix.total;
        true
    }

    /// Checks a content header frame; true if the scan continues.
    fn header(&mut self, prefix: Prefix) -> bool {
        let limit = self.frame_max;
        let Prefix { channel, total: bytes, .. } = prefix;
        let problem = if bytes > limit {
            if self.end - self.passed < bytes.min(MAX_KEPT) {
                return false;
            }
            Some(Problem::TooLarge { bytes, limit })
        } else {
            let Some(payload) = self.whole(prefix) else { return false };
            check(payload).err()
        };
        let problem = self.replaced_methods.get(&channel).copied().or(problem);
        let Some(problem) = problem else {
            self.skip = prefix.total;
            return true;
        };
        self.replace(prefix, |filter| {
            filter.replaced_methods.remove(&channel);
            let frame = &filter.buffer[filter.passed..filter.end];
            let payload = &frame[PREFIX..frame.len().min(bytes - 1)];
            repaired(channel, payload, &problem.to_string(), limit)
        })
    }

    /// Replaces the current frame if nothing is to be handed out before it. False: the scan ends here.
    fn replace(&mut self, prefix: Prefix, with: impl FnOnce(&mut Self) -> Vec<u8>) -> bool {
        if self.raw {
            return true;
        }
        if self.passed == self.start {
            self.replacement = with(self).into();
            self.discard = prefix.total;
            self.discard();
        }
        false
    }
}

fn method_frame(channel: u16, payload: &[u8]) -> Vec<u8> {
    // At most three times MAX_KEPT: U+FFFD has three bytes.
    let size = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    [&[FRAME_METHOD][..], &channel.to_be_bytes(), &size.to_be_bytes(), payload, &[FRAME_END]].concat()
}
