//! Makes Protobuf readable that has texts which are not UTF-8. The parser refuses the whole body for one of them.

use garenne_protocol::sensor::lenient;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// A field that is or has texts.
enum Field {
    Text,
    Message(&'static [(u32, Field)]),
}

use Field::{Message, Text};

static REQUEST: &[(u32, Field)] = &[(1, Message(&[(1, Message(ATTRIBUTES)), (2, Message(SCOPE_METRICS))]))];
static SCOPE_METRICS: &[(u32, Field)] = &[(2, Message(METRIC))];
static METRIC: &[(u32, Field)] = &[(1, Text), (3, Text), (5, Message(POINTS)), (7, Message(POINTS))];
static POINTS: &[(u32, Field)] = &[(1, Message(&[(7, Message(KEY_VALUE))]))];
static ATTRIBUTES: &[(u32, Field)] = &[(1, Message(KEY_VALUE))];
static KEY_VALUE: &[(u32, Field)] = &[(1, Text), (2, Message(&[(1, Text)]))];

/// Replaces the bytes of texts that are not UTF-8 by [`lenient::BAD_BYTE`]. What is malformed stays.
pub(super) fn mark_texts(body: &mut [u8]) {
    mark(body, REQUEST);
}

fn mark(mut message: &mut [u8], fields: &[(u32, Field)]) {
    while !message.is_empty() {
        let mut rest = &*message;
        let Some(length) = next(&mut rest) else { return };
        let start = message.len() - rest.len();
        let Some((tag, length)) = length else {
            message = &mut message[start..];
            continue;
        };
        let Some((inner, behind)) = message[start..].split_at_mut_checked(length) else { return };
        match fields.iter().find(|(known, _)| *known == tag) {
            Some((_, Text)) => lenient::mark_not_utf8(inner),
            Some((_, Message(fields))) => mark(inner, fields),
            None => {}
        }
        message = behind;
    }
}

/// Reads the start of a field: its tag and its length if it has one, else all of it. [`None`] if it is malformed.
fn next(message: &mut &[u8]) -> Option<Option<(u32, usize)>> {
    let (tag, wire_type) = decode_key(message).ok()?;
    if wire_type == WireType::LengthDelimited {
        let length = decode_varint(message).ok()?;
        return Some(Some((tag, usize::try_from(length).ok()?)));
    }
    skip_field(wire_type, tag, message, DecodeContext::default()).ok()?;
    Some(None)
}
