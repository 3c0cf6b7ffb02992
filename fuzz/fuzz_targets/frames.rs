//! Any bytes that a publisher can make a broker send: every frame that comes out of the filter can be parsed,
//! and bodies are as they were. Any other bytes: no panic, and memory in proportion.

#![no_main]

use std::sync::{Arc, OnceLock};

use amq_protocol::frame::{AMQPFrame, parse_frame};
use arbitrary::Arbitrary;
use garenne_common::broker::{frames::FrameFilter, unreadable};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Part {
    Deliver { exchange: Vec<u8>, routing_key: Vec<u8> },
    /// Flags and properties.
    Header { flags: u16, properties: Vec<u8> },
    /// Nothing but headers, in tables within each other.
    Nested { levels: u16, kind: bool, table: Vec<u8> },
    Close { reply_text: Vec<u8> },
    Body(Vec<u8>),
    Heartbeat,
}

#[derive(Arbitrary, Debug)]
enum Input {
    Broker { parts: Vec<Part>, frame_max: u32, chunks: Vec<u8> },
    Anything { bytes: Vec<u8>, chunks: Vec<u8> },
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap();
    [&[kind, 0, 1][..], &size.to_be_bytes(), payload, &[0xCE]].concat()
}

fn short(text: &[u8]) -> Vec<u8> {
    let text = &text[..text.len().min(255)];
    [&[text.len() as u8], text].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

fn header(flags: u16, properties: &[u8]) -> Vec<u8> {
    let fixed = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    frame(2, &[&fixed[..], &flags.to_be_bytes(), properties].concat())
}

impl Part {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Deliver { exchange, routing_key } => {
                let tag = [0, 60, 0, 60, 1, b't', 0, 0, 0, 0, 0, 0, 0, 1, 0];
                frame(1, &[&tag[..], &short(exchange), &short(routing_key)].concat())
            }
            Self::Header { flags, properties } => header(*flags, properties),
            Self::Nested { levels, kind, table } => {
                let mut inner = table.clone();
                for _ in 0..levels % 2000 {
                    let name = if *kind { &b"\x01n"[..] } else { b"" };
                    inner = [name, &[if *kind { b'F' } else { b'A' }], &long(&inner)].concat();
                }
                header(1 << 13, &long(&if *kind { inner } else { [&b"\x01nA"[..], &long(&inner)].concat() }))
            }
            Self::Close { reply_text } => {
                frame(1, &[&[0, 20, 0, 40, 1, 0x94][..], &short(reply_text), &[0, 60, 0, 40]].concat())
            }
            Self::Body(body) => frame(3, body),
            Self::Heartbeat => b"\x08\0\0\0\0\0\0\xCE".to_vec(),
        }
    }
}

fn filtered(filter: &mut FrameFilter, mut bytes: &[u8], chunks: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut sizes = chunks.iter().map(|size| usize::from(*size) + 1).chain(std::iter::repeat(usize::MAX));
    while !bytes.is_empty() {
        let space = filter.space();
        let count = sizes.next().unwrap_or(1).min(space.len()).min(bytes.len());
        space[..count].copy_from_slice(&bytes[..count]);
        filter.filled(count);
        bytes = &bytes[count..];
        loop {
            let output = filter.output();
            if output.is_empty() {
                break;
            }
            let count = output.len();
            out.extend_from_slice(output);
            filter.consume(count);
        }
    }
    out
}

fuzz_target!(|input: Input| {
    let version = Arc::new(OnceLock::new());
    match input {
        Input::Anything { bytes, chunks } => {
            let mut filter = FrameFilter::new(131_072, version);
            filtered(&mut filter, &bytes, &chunks);
        }
        Input::Broker { parts, frame_max, chunks } => {
            let frames: Vec<_> = parts.iter().map(Part::bytes).collect();
            let mut filter = FrameFilter::new(frame_max, version);
            let out = filtered(&mut filter, &frames.concat(), &chunks);
            let mut rest = &out[..];
            for (part, frame) in parts.iter().zip(&frames) {
                let (after, parsed) = parse_frame(rest).expect("lapin can parse it");
                let same = &rest[..rest.len() - after.len()] == frame.as_slice();
                match (part, &parsed) {
                    (Part::Body(_) | Part::Heartbeat, _) => assert!(same),
                    (_, AMQPFrame::Header(_, header)) => {
                        assert_eq!(same, unreadable(&header.properties).is_none());
                        assert_eq!(header.body_size, 9);
                    }
                    _ => {}
                }
                rest = after;
            }
            assert!(rest.is_empty());
        }
    }
});
