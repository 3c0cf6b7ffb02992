//! The memory that a body needs when it is decoded. A message of two bytes may need a hundred in memory.

use bytes::Buf;
use memchr::{memchr_iter, memmem};
use prost::{
    DecodeError,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};

use super::message::{KeyValue, Metric, NumberPoint, ResourceMetrics, ScopeMetrics};
use crate::payload::RECORD;

/// Memory of a data point's reading while the decoded messages are still in memory.
const READING: usize = 448;
/// Memory of the allocations of a message's texts, besides the texts.
const TEXTS: usize = 48;
/// Memory of a JSON object: a quarter of the room for four metrics, which an array with one of them has.
const JSON_OBJECT: usize = 192;

/// Sizes of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Data points of gauges and sums.
    pub(super) points: usize,
    /// Memory of its decoded messages, besides their texts.
    pub(super) bytes: usize,
}

/// A kind of message, and its fields that are messages.
struct Kind {
    /// Memory of one in an array; 0 if there are no arrays of them.
    size: usize,
    is_point: bool,
    fields: &'static [(u32, &'static Kind)],
}

const fn one(fields: &'static [(u32, &'static Kind)]) -> Kind {
    Kind { size: 0, is_point: false, fields }
}

const fn many<T>(fields: &'static [(u32, &'static Kind)]) -> Kind {
    Kind { size: size_of::<T>(), is_point: false, fields }
}

static REQUEST: Kind = one(&[(1, &RESOURCE_METRICS)]);
static RESOURCE_METRICS: Kind = many::<ResourceMetrics>(&[(1, &RESOURCE), (2, &SCOPE_METRICS)]);
static RESOURCE: Kind = one(&[(1, &KEY_VALUE)]);
static SCOPE_METRICS: Kind = many::<ScopeMetrics>(&[(2, &METRIC)]);
static METRIC: Kind = many::<Metric>(&[(5, &POINTS), (7, &POINTS), (9, &NONE), (10, &NONE), (11, &NONE)]);
static POINTS: Kind = one(&[(1, &POINT)]);
static POINT: Kind = Kind { is_point: true, ..many::<NumberPoint>(&[(7, &KEY_VALUE)]) };
static KEY_VALUE: Kind = many::<KeyValue>(&[]);
static NONE: Kind = one(&[]);

/// Measures a body in Protobuf.
pub(super) fn protobuf(body: &[u8]) -> Result<Size, DecodeError> {
    measure(body, &REQUEST)
}

fn measure(mut message: &[u8], kind: &Kind) -> Result<Size, DecodeError> {
    let mut total = Size { points: usize::from(kind.is_point), bytes: 0 };
    let mut counts = [0_usize; 5];
    while message.has_remaining() {
        let (tag, wire_type) = decode_key(&mut message)?;
        let field = kind.fields.iter().position(|(known, _)| *known == tag);
        let Some(field) = field.filter(|_| wire_type == WireType::LengthDelimited) else {
            skip_field(wire_type, tag, &mut message, DecodeContext::default())?;
            continue;
        };
        let before = message;
        let length = usize::try_from(decode_varint(&mut message)?).unwrap_or(usize::MAX);
        let Some((inner, rest)) = message.split_at_checked(length) else {
            // Fails with the parser's text.
            skip_field(wire_type, tag, &mut &*before, DecodeContext::default())?;
            break;
        };
        counts[field] += 1;
        let size = measure(inner, kind.fields[field].1)?;
        total.points += size.points;
        total.bytes += size.bytes;
        message = rest;
    }
    for ((_, field), count) in kind.fields.iter().zip(counts) {
        total.bytes += match (field.size, count) {
            (_, 0) => 0,
            // A box.
            (0, _) => TEXTS,
            // An array has room for a power of two, and for at least four.
            (size, count) => count.next_power_of_two().max(4) * size + count * TEXTS,
        };
    }
    Ok(total)
}

pub(super) fn protobuf_weight(body: &[u8]) -> usize {
    // The parser names the error of a malformed body.
    weight(protobuf(body).unwrap_or_default(), body)
}

/// Every message of a list is an object, which the parser requires. A data point without a time is no reading, so there are no more readings than times, unless
/// a field's name is escaped.
pub(super) fn json_weight(body: &[u8]) -> usize {
    let objects = memchr_iter(b'{', body).count();
    let points = match memchr::memchr(b'\\', body) {
        Some(_) => objects,
        None => memmem::find_iter(body, "timeUnixNano").count().min(objects),
    };
    weight(Size { points, bytes: objects * JSON_OBJECT }, body)
}

fn weight(Size { points, bytes }: Size, body: &[u8]) -> usize {
    // Texts are copied.
    let texts = body.len();
    let decoded = bytes.saturating_add(points.saturating_mul(READING)).saturating_add(texts).div_ceil(RECORD);
    points.max(decoded)
}
