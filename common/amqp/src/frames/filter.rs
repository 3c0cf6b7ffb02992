//! The filter itself, without input or output.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use garenne_protocol::topology::BrokerVersion;

use super::{
    check::{Problem, check},
    method,
    repair::repaired,
};

/// What is read at once. Larger only while a larger header frame arrives.
const BUFFER: usize = 64 * 1024;
/// Room that a read must find.
const LEAST_READ: usize = 16 * 1024;
/// Most bytes of one frame that are kept. A broker's frames are not larger than 131,072 bytes by default and
/// what it added for dead-lettering; of a larger one the rest is dropped, and the first part is recovered.
const KEPT: usize = 256 * 1024;
/// A negotiated frame is not smaller.
const LEAST_FRAME_MAX: usize = 4096;

const FRAME_METHOD: u8 = 1;
const FRAME_HEADER: u8 = 2;
const FRAME_BODY: u8 = 3;
const FRAME_HEARTBEAT: u8 = 8;
const FRAME_END: u8 = 0xCE;
/// Type, channel and size before the payload.
const PREFIX: usize = 7;
/// The prefix and the end octet.
const OVERHEAD: usize = PREFIX + 1;

/// Passes the frames of a broker on, with those replaced that lapin cannot parse. Bytes go in by
/// [`FrameFilter::space`] and [`FrameFilter::filled`], and come out by [`FrameFilter::output`] and
/// [`FrameFilter::consume`].
#[derive(Debug)]
pub struct FrameFilter {
    buffer: Vec<u8>,
    /// What was read and not handed out is `buffer[start..end]`.
    start: usize,
    /// What may be handed out is `buffer[start..passed]`.
    passed: usize,
    end: usize,
    /// Bytes of the current frame that follow `passed` and need no look.
    skip: u64,
    /// Bytes that follow `passed` and belong to a frame that was replaced.
    discard: u64,
    /// A replaced frame, to be handed out before anything else.
    replacement: Vec<u8>,
    /// How much of it was handed out.
    replaced: usize,
    /// The framing is lost, or was never there: everything is passed on for lapin to refuse.
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
    /// The whole frame.
    total: u64,
}

impl Prefix {
    fn read(bytes: &[u8]) -> Option<Self> {
        let [kind, c1, c0, size @ ..] = *bytes.first_chunk::<PREFIX>()?;
        let total = u64::from(u32::from_be_bytes(size)) + OVERHEAD as u64;
        Some(Self { kind, channel: u16::from_be_bytes([c1, c0]), total })
    }
}

impl FrameFilter {
    /// A filter for a client that offers `frame_max` (0 is no limit). `version` is set when the broker has
    /// told its version.
    pub fn new(frame_max: u32, version: Arc<OnceLock<BrokerVersion>>) -> Self {
        let mut filter = Self {
            buffer: Vec::new(),
            start: 0,
            passed: 0,
            end: 0,
            skip: 0,
            discard: 0,
            replacement: Vec::new(),
            replaced: 0,
            raw: false,
            frame_max: KEPT,
            replaced_methods: HashMap::new(),
            version,
        };
        filter.limit(frame_max);
        filter
    }

    /// The smaller limit holds, as in lapin's negotiation.
    fn limit(&mut self, frame_max: u32) {
        let limit = usize::try_from(frame_max).unwrap_or(usize::MAX);
        if limit > 0 {
            self.frame_max = self.frame_max.min(limit.max(LEAST_FRAME_MAX));
        }
    }

    /// Room to read into; never empty. Call [`FrameFilter::filled`] with what was read.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.passed, self.end) = (0, 0, 0);
            if self.buffer.len() != BUFFER {
                self.buffer = vec![0; BUFFER];
            }
        } else if self.buffer.len() - self.end < LEAST_READ {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.passed, self.end) = (self.passed - self.start, self.end - self.start);
            self.start = 0;
            if self.buffer.len() - self.end < LEAST_READ {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        &mut self.buffer[self.end..]
    }

    /// So many bytes were read into [`FrameFilter::space`].
    pub fn filled(&mut self, count: usize) {
        self.end += count;
    }

    /// What may be handed on now; empty if more must be read first.
    pub fn output(&mut self) -> &[u8] {
        if self.replacement.is_empty() && self.passed == self.start {
            self.scan();
        }
        if self.replacement.is_empty() {
            &self.buffer[self.start..self.passed]
        } else {
            &self.replacement[self.replaced..]
        }
    }

    /// So many bytes of [`FrameFilter::output`] were handed on.
    pub fn consume(&mut self, count: usize) {
        if self.replacement.is_empty() {
            self.start += count;
        } else {
            self.replaced += count;
            if self.replaced == self.replacement.len() {
                (self.replacement, self.replaced) = (Vec::new(), 0);
            }
        }
    }

    /// How many of the broker's next bytes need no look, so that they can be read past this filter. Call
    /// [`FrameFilter::read_past`] with what was.
    pub fn may_read_past(&self) -> usize {
        if self.start < self.end || !self.replacement.is_empty() {
            0
        } else if self.raw {
            usize::MAX
        } else {
            usize::try_from(self.skip).unwrap_or(usize::MAX)
        }
    }

    /// So many bytes were read past this filter.
    pub fn read_past(&mut self, count: usize) {
        self.skip = self.skip.saturating_sub(count as u64);
    }

    /// Moves `passed` as far as possible, up to a frame that must be replaced; replaces it if nothing is to
    /// be handed out before it.
    fn scan(&mut self) {
        self.discard();
        while self.passed < self.end {
            if self.raw {
                self.passed = self.end;
                return;
            }
            if self.skip > 0 {
                let count = self.skip.min((self.end - self.passed) as u64);
                self.skip -= count;
                self.passed += usize::try_from(count).unwrap_or(usize::MAX);
                continue;
            }
            // The answer to a protocol version that the broker does not speak, or no AMQP at all.
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
        let count = self.discard.min((self.end - self.passed) as u64);
        if count > 0 {
            self.discard -= count;
            self.start += usize::try_from(count).unwrap_or(usize::MAX);
            self.passed = self.start;
        }
    }

    /// The current frame's payload, if all of the frame is there. Without an end octet the framing is lost.
    fn whole(&mut self, prefix: Prefix) -> Option<&[u8]> {
        let total = usize::try_from(prefix.total).ok()?;
        let frame = self.buffer[self.passed..self.end].get(..total)?;
        if frame[total - 1] != FRAME_END {
            self.raw = true;
        }
        Some(&frame[PREFIX..total - 1])
    }

    /// Looks at a method frame; whether the scan goes on.
    fn method(&mut self, prefix: Prefix) -> bool {
        if prefix.total > KEPT as u64 {
            // No broker sends such a method.
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
                    // A connection has one start.
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

    /// Looks at a content header frame; whether the scan goes on.
    fn header(&mut self, prefix: Prefix) -> bool {
        let limit = self.frame_max;
        let (channel, too_large) = (prefix.channel, prefix.total > limit as u64);
        let problem = if too_large {
            let bytes = usize::try_from(prefix.total).unwrap_or(usize::MAX);
            if self.end - self.passed < bytes.min(KEPT) {
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
            let end = usize::try_from(prefix.total - 1).unwrap_or(usize::MAX);
            let frame = &filter.buffer[filter.passed..filter.end];
            let payload = &frame[PREFIX..end.min(frame.len())];
            repaired(channel, payload, &problem.to_string(), limit)
        })
    }

    /// Replaces the current frame, once nothing is to be handed out before it. The scan ends with it.
    fn replace(&mut self, prefix: Prefix, with: impl FnOnce(&mut Self) -> Vec<u8>) -> bool {
        if self.raw {
            return true;
        }
        if self.passed == self.start {
            self.replacement = with(self);
            self.discard = prefix.total;
            self.discard();
        }
        false
    }
}

fn method_frame(channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(payload.len() + OVERHEAD);
    frame.push(FRAME_METHOD);
    frame.extend_from_slice(&channel.to_be_bytes());
    // The payload is at most three times as large as one of KEPT bytes.
    frame.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(payload);
    frame.push(FRAME_END);
    frame
}
