//! Builds a well-formed content header from the readable parts of a bad one.

use std::{collections::BTreeMap, iter};

use amq_protocol::{
    frame::{AMQPContentHeader, AMQPFrame, gen_frame},
    types::parsing::parse_value,
};
use bytes::Buf;
use garenne_protocol::task::header;
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldArray, FieldTable, ShortString},
};

use super::{
    MAX_DEPTH,
    check::{Encoding, present},
    mark::mark,
    read,
};

/// Most bytes of headers that are kept: a copy of the message adds headers of its own.
const MAX_HEADERS: usize = 32 * 1024;
/// Most bytes of a short string.
const MAX_SHORT: usize = 255;
/// Small headers that a broker writes for its consumers: never left out for their size.
const OF_BROKER: [&str; 5] = [
    "x-stream-offset",
    "x-delivery-count",
    "x-first-death-reason",
    "x-first-death-queue",
    "x-first-death-exchange",
];

/// Replaces a content header frame by one that lapin can parse, marked with `problem`. `payload` may be
/// truncated. The new frame is not larger than `frame_max`, which is at least 4,096.
pub(super) fn repaired(channel: u16, payload: &[u8], problem: &str, frame_max: usize) -> Vec<u8> {
    let mut rest = payload;
    let class_id = rest.try_get_u16().unwrap_or_default();
    let _weight = rest.try_get_u16();
    let body_size = rest.try_get_u64().unwrap_or_default();
    let flags = rest.try_get_u16().unwrap_or_default();
    let (properties, mut headers) = properties(flags, rest);
    let found = headers.len();
    keep_smallest(&mut headers, MAX_HEADERS.min(frame_max / 2));
    let frame = |headers: Vec<Header>| {
        let left_out = found - headers.len();
        let problem = match left_out {
            0 => problem.to_owned(),
            1 => format!("{problem}; 1 header is left out"),
            n => format!("{problem}; {n} headers are left out"),
        };
        let mut table = table(headers);
        mark(&mut table, &problem);
        let properties = properties.clone().with_headers(table);
        encode(&AMQPFrame::Header(channel, AMQPContentHeader { class_id, body_size, properties }))
    };
    let marked = frame(headers);
    // U+FFFD in place of invalid bytes can triple the size of text.
    if marked.len() <= frame_max { marked } else { frame(Vec::new()) }
}

fn encode(frame: &AMQPFrame) -> Vec<u8> {
    let written = gen_frame(frame)(Vec::new().into());
    written.expect("writing to memory does not fail").into_inner().0
}

/// A header and its encoded size in bytes.
struct Header {
    name: ShortString,
    value: AMQPValue,
    size: usize,
}

fn table(headers: Vec<Header>) -> FieldTable {
    let named = headers.into_iter().map(|Header { name, value, .. }| (name, value));
    named.collect::<BTreeMap<_, _>>().into()
}

/// Drops the largest headers until the others fit into `room` bytes.
fn keep_smallest(headers: &mut Vec<Header>, room: usize) {
    if headers.iter().map(|header| header.size).sum::<usize>() <= room {
        return;
    }
    let of_broker =
        |header: &Header| OF_BROKER.contains(&header.name.as_str()) && header.size <= 2 * MAX_SHORT;
    headers.sort_by_key(|header| (!of_broker(header), header.size));
    let mut taken = 0;
    headers.retain(|header| {
        taken += header.size;
        taken <= room
    });
}

/// Every property up to the first that cannot be read.
fn properties(flags: u16, mut rest: &[u8]) -> (BasicProperties, Vec<Header>) {
    let mut properties = BasicProperties::default();
    let mut headers = Vec::new();
    for (_, encoding) in present(flags) {
        properties = match encoding {
            Encoding::Short(set) => {
                let Ok(length) = rest.try_get_u8() else { break };
                set(properties, lossy(read::take_up_to(&mut rest, length.into())))
            }
            Encoding::Table => {
                let Some(length) = read::length(&mut rest) else { break };
                headers = read_table(read::take_up_to(&mut rest, length), 1);
                properties
            }
            Encoding::Octet(set) => {
                let Ok(octet) = rest.try_get_u8() else { break };
                set(properties, octet)
            }
            Encoding::Time(set) => {
                let Ok(time) = rest.try_get_u64() else { break };
                set(properties, time)
            }
        };
    }
    (properties, headers)
}

/// A short string with U+FFFD for what is not UTF-8, cut to the length that a short string may have.
pub(super) fn lossy(bytes: &[u8]) -> ShortString {
    let text = String::from_utf8_lossy(bytes);
    ShortString::try_new(&text[..text.floor_char_boundary(MAX_SHORT)]).unwrap_or_default()
}

/// A table's entries up to the first that cannot be read.
fn read_table(mut bytes: &[u8], depth: usize) -> Vec<Header> {
    let next = || {
        let before = bytes.len();
        let name = lossy(read::short(&mut bytes)?);
        let value = read_value(&mut bytes, depth)?;
        Some(Header { name, value, size: before - bytes.len() })
    };
    iter::from_fn(next).collect()
}

fn read_array(mut bytes: &[u8], depth: usize) -> FieldArray {
    iter::from_fn(|| read_value(&mut bytes, depth)).collect::<Vec<_>>().into()
}

/// The next value. Of a truncated string, table or array, the part that is there. A value nested deeper than
/// [`MAX_DEPTH`] becomes void.
fn read_value(rest: &mut &[u8], depth: usize) -> Option<AMQPValue> {
    let octet = *rest.first()?;
    if !matches!(octet, b'F' | b'A' | b'S' | b'x') {
        // A type of fixed size.
        let (after, value) = parse_value(*rest).ok()?;
        *rest = after;
        return Some(value);
    }
    rest.advance(1);
    let length = read::length(rest)?;
    let bytes = read::take_up_to(rest, length);
    Some(match octet {
        b'S' => AMQPValue::LongString(bytes.into()),
        b'x' => AMQPValue::ByteArray(bytes.into()),
        _ if depth >= MAX_DEPTH => AMQPValue::Void,
        b'F' => AMQPValue::FieldTable(table(read_table(bytes, depth + 1))),
        _ => AMQPValue::FieldArray(read_array(bytes, depth + 1)),
    })
}

/// The text `name` of an encoded table.
pub(super) fn text(bytes: &[u8], name: &str) -> Option<String> {
    let mut headers = read_table(bytes, 1).into_iter();
    header::text(&headers.find(|header| header.name.as_str() == name)?.value)
}
