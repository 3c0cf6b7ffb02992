//! Any traffic that a publisher can make a broker send: one frame comes out of the filter for each that went
//! in, lapin's parser takes it, and it differs from the original only where lapin could not take that. Any
//! other bytes: no panic, and a bounded buffer.

#![no_main]

mod traffic;

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, parse_frame};
use arbitrary::Arbitrary;
use garenne_amqp::{frames::FrameFilter, unreadable};
use lapin::types::{AMQPValue, ShortString};
use libfuzzer_sys::fuzz_target;

use traffic::{BODY_SIZE, DELIVERY_COUNT, Group, Header, LEAST_FRAME_MAX, Method, Part, Text};

/// Most bytes of a frame that the filter keeps.
const KEPT: usize = 256 * 1024;
/// Most bytes of the filter's buffer.
const MAX_BUFFER: usize = 4 * KEPT;
/// The default frame_max of a broker. Below it a replaced header may lose all of its headers.
const DEFAULT_FRAME_MAX: u32 = 131_072;

#[derive(Arbitrary, Debug)]
enum Input {
    Broker { frame_max: FrameMax, groups: Vec<Group>, reads: Vec<Read> },
    Anything { frame_max: FrameMax, reads: Vec<Read>, bytes: Vec<u8> },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum FrameMax {
    None,
    Least,
    Default,
    Any(u32),
}

impl FrameMax {
    fn bytes(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Least => LEAST_FRAME_MAX as u32,
            Self::Default => DEFAULT_FRAME_MAX,
            Self::Any(bytes) => bytes,
        }
    }
}

/// How the stream reads and the client takes.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Read(u8);

impl Read {
    /// Past the filter, where it allows that.
    fn past(self) -> bool {
        self.0 & 1 != 0
    }

    /// Most bytes that the client takes.
    fn taken(self) -> usize {
        if self.0 & 2 == 0 { usize::MAX } else { 3 }
    }

    /// Most bytes of a read. More where there are many, so that their number is bounded.
    fn count(self, all: usize) -> usize {
        (usize::from(self.0 >> 2) + 1) * (all / 4096 + 1)
    }
}

fn filtered(frame_max: u32, mut bytes: &[u8], reads: &[Read]) -> Vec<u8> {
    let mut filter = FrameFilter::new(frame_max, Arc::new(OnceLock::new()));
    let mut out = Vec::new();
    let mut reads = reads.iter().copied().cycle();
    let all = bytes.len();
    while !bytes.is_empty() {
        let read = reads.next();
        let most = read.map_or(usize::MAX, |read| read.count(all)).min(bytes.len());
        let past = filter.may_read_past().min(most);
        if read.is_some_and(Read::past) && past > 0 {
            out.extend_from_slice(&bytes[..past]);
            filter.read_past(past);
            bytes = &bytes[past..];
            continue;
        }
        let space = filter.space();
        assert!(!space.is_empty() && space.len() <= MAX_BUFFER);
        let count = most.min(space.len());
        space[..count].copy_from_slice(&bytes[..count]);
        filter.filled(count);
        bytes = &bytes[count..];
        loop {
            let output = filter.output();
            if output.is_empty() {
                break;
            }
            let taken = read.map_or(usize::MAX, Read::taken).min(output.len());
            out.extend_from_slice(&output[..taken]);
            filter.consume(taken);
        }
    }
    out
}

/// The largest frame that the filter may let through: the smaller limit holds, 0 is none.
fn limited(limit: usize, frame_max: u32) -> usize {
    if frame_max == 0 { limit } else { limit.min(LEAST_FRAME_MAX.max(frame_max as usize)) }
}

/// A frame that went in, what came out for it, and what that is to lapin.
struct Passed<'a> {
    frame: &'a [u8],
    out: &'a [u8],
    parsed: AMQPFrame,
}

impl Passed<'_> {
    fn same(&self) -> bool {
        self.out == self.frame
    }

    /// Whether lapin takes the original. Not to be asked of one that is nested deep: the parser is recursive.
    fn readable(&self) -> bool {
        parse_frame(self.frame).is_ok()
    }

    /// Whether the method was replaced, so that its message must be marked.
    fn check_method(&self, method: &Method) -> bool {
        assert!(matches!(self.parsed, AMQPFrame::Method(..)));
        assert_eq!(self.same(), self.readable());
        method.has_content() && !self.same()
    }

    fn check_header(&self, header: &Header, bad_method: bool, limit: usize) {
        let AMQPFrame::Header(_, AMQPContentHeader { body_size, properties, .. }) = &self.parsed else {
            panic!("a content header is replaced by one");
        };
        let too_large = self.frame.len() > limit;
        assert!(self.out.len() <= limit);
        match unreadable(properties) {
            None => assert!(self.same() && !bad_method && !too_large && !header.too_deep()),
            Some(problem) => {
                assert!(!self.same());
                if !bad_method && !too_large && !problem.starts_with("headers are nested") {
                    assert!(!self.readable(), "{problem}");
                }
            }
        }
        let Some(original) = header.intact(KEPT) else { return };
        assert_eq!(*body_size, BODY_SIZE);
        assert_eq!(properties.delivery_mode(), &original.delivery_mode);
        assert_eq!(properties.priority(), &original.priority);
        assert_eq!(properties.timestamp(), &original.timestamp);
        for (name, text, found) in [
            ("content_type", &original.texts[0], properties.content_type()),
            ("message_id", &original.texts[5], properties.message_id()),
            ("cluster_id", &original.texts[9], properties.cluster_id()),
        ] {
            check_text(name, text.as_ref(), found.as_ref());
        }
        if let Some(count) = original.only_delivery_count()
            && limit >= DEFAULT_FRAME_MAX as usize
        {
            let headers = properties.headers().as_ref().expect("there are headers");
            assert_eq!(headers.inner().get(DELIVERY_COUNT), Some(&AMQPValue::LongLongInt(count)));
        }
    }
}

/// A recovered text is the original with replacement characters, cut where it would be too long.
fn check_text(name: &str, original: Option<&Text>, found: Option<&ShortString>) {
    assert_eq!(original.is_some(), found.is_some(), "{name}");
    let (Some(original), Some(found)) = (original, found) else { return };
    let original = original.bytes();
    let lossy = String::from_utf8_lossy(&original);
    assert!(lossy.starts_with(found.as_str()), "{name}");
    assert!(found.as_str().len() > 252 || lossy == found.as_str(), "{name}");
}

fuzz_target!(|input: Input| {
    let (parts, frame_max, reads) = match input {
        Input::Anything { frame_max, reads, bytes } => {
            let frame_max = frame_max.bytes();
            let out = filtered(frame_max, &bytes, &reads);
            assert_eq!(out, filtered(frame_max, &bytes, &[]), "the size of a read makes no difference");
            return;
        }
        Input::Broker { frame_max, groups, reads } => {
            (groups.into_iter().flat_map(Group::parts).collect::<Vec<_>>(), frame_max.bytes(), reads)
        }
    };
    let frames: Vec<_> = parts.iter().map(Part::frame).collect();
    let out = filtered(frame_max, &frames.concat(), &reads);
    let mut rest = &out[..];
    let mut limit = limited(KEPT, frame_max);
    let mut bad_methods = HashSet::new();
    for (part, frame) in parts.iter().zip(&frames) {
        let (after, parsed) = parse_frame(rest).expect("lapin can parse it");
        let passed = Passed { frame, out: &rest[..rest.len() - after.len()], parsed };
        match part {
            Part::Method { channel, method } => {
                if passed.check_method(method) {
                    bad_methods.insert(*channel);
                }
                if let Method::Tune { frame_max } = method {
                    limit = limited(limit, *frame_max);
                }
            }
            Part::Header { channel, header } => {
                passed.check_header(header, bad_methods.remove(channel), limit);
            }
            Part::Body(_) | Part::Heartbeat => assert!(passed.same()),
        }
        rest = after;
    }
    assert!(rest.is_empty());
    assert_eq!(filtered(frame_max, &out, &[]), out, "what was replaced is not replaced again");
});
