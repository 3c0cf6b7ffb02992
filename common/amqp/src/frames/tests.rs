//! The filter against amq-protocol's own parser.

mod any;
mod cases;
mod reader;

use std::sync::{Arc, OnceLock};

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, gen_frame, parse_frame};
use lapin::{BasicProperties, types::FieldTable};

use super::*;

const FRAME_MAX: u32 = 131_072;

fn filter() -> FrameFilter {
    FrameFilter::new(FRAME_MAX, Arc::new(OnceLock::new()))
}

/// The filter's output for these chunks.
fn filtered<'a>(filter: &mut FrameFilter, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for mut chunk in chunks {
        while !chunk.is_empty() {
            let space = filter.space();
            let count = space.len().min(chunk.len());
            space[..count].copy_from_slice(&chunk[..count]);
            filter.filled(count);
            chunk = &chunk[count..];
            loop {
                let output = filter.output();
                if output.is_empty() {
                    break;
                }
                // Takes a part only, as a reader with a small buffer does.
                let count = output.len().div_ceil(2);
                out.extend_from_slice(&output[..count]);
                filter.consume(count);
            }
        }
    }
    out
}

/// Parses bytes that consist of whole frames.
fn parsed(mut bytes: &[u8]) -> Vec<AMQPFrame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (rest, frame) = parse_frame(bytes).expect("a frame that lapin can parse");
        frames.push(frame);
        bytes = rest;
    }
    frames
}

fn raw(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend(channel.to_be_bytes());
    frame.extend((payload.len() as u32).to_be_bytes());
    frame.extend(payload);
    frame.push(0xCE);
    frame
}

fn short(text: &[u8]) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// A `basic.deliver` on channel 1.
fn deliver(exchange: &[u8], routing_key: &[u8]) -> Vec<u8> {
    let parts = [&[0, 60, 0, 60][..], &short(b"ctag"), &[0, 0, 0, 0, 0, 0, 0, 7, 0], &short(exchange)];
    raw(1, 1, &[&parts.concat()[..], &short(routing_key)].concat())
}

/// A content header's payload with these flags and the encoded properties.
fn header_payload(body_size: u64, flags: u16, properties: &[u8]) -> Vec<u8> {
    [&[0, 60, 0, 0][..], &body_size.to_be_bytes(), &flags.to_be_bytes(), properties].concat()
}

/// A content header on channel 1 whose only property is this encoded header table.
fn headers(table: &[u8]) -> Vec<u8> {
    raw(2, 1, &header_payload(2, 1 << 13, &long(table)))
}

fn good_header(properties: BasicProperties, body_size: u64) -> Vec<u8> {
    let header = AMQPContentHeader { class_id: 60, body_size, properties };
    gen_frame(&AMQPFrame::Header(1, header))(Vec::new().into()).unwrap().into_inner().0
}

/// The content header among these frames.
fn header_of(frames: &[AMQPFrame]) -> &AMQPContentHeader {
    let found = frames.iter().find_map(|frame| match frame {
        AMQPFrame::Header(1, header) => Some(header),
        _ => None,
    });
    found.expect("a content header")
}

/// The properties that lapin gets of a message with this content header frame.
fn received(header: &[u8]) -> BasicProperties {
    let stream = [&deliver(b"garenne.tasks", b"bench.noop"), header, &raw(3, 1, b"{}")].concat();
    let frames = parsed(&filtered(&mut filter(), [&stream[..]]));
    assert_eq!(frames.len(), 3);
    assert_eq!(frames[2], AMQPFrame::Body(1, b"{}".to_vec()), "the body is unchanged");
    header_of(&frames).properties.clone()
}

fn table_of(properties: &BasicProperties) -> &FieldTable {
    properties.headers().as_ref().expect("headers")
}
