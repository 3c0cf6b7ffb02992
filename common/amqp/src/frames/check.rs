//! Checks without allocating whether lapin can parse a content header.

use bytes::Buf;
use lapin::{BasicProperties, types::ShortString};

use super::{MAX_DEPTH, read};

/// Why lapin cannot parse a content header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    /// Tables or arrays are nested deeper than [`MAX_DEPTH`].
    #[error("headers are nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// A value's type octet is unknown.
    #[error("a header has the unknown type {0:#04x}")]
    UnknownType(u8),
    /// A part is longer or shorter than its encoded length.
    #[error("the length of {0} is wrong")]
    Length(&'static str),
    /// The frame is larger than the negotiated frame_max, both in bytes.
    #[error("the header frame has {bytes} bytes, frame_max is {limit}")]
    TooLarge { bytes: usize, limit: usize },
}

/// How a property is encoded, and the function that sets it.
#[derive(Clone, Copy)]
pub(super) enum Encoding {
    Short(fn(BasicProperties, ShortString) -> BasicProperties),
    /// The headers.
    Table,
    Octet(fn(BasicProperties, u8) -> BasicProperties),
    Time(fn(BasicProperties, u64) -> BasicProperties),
}

/// The properties in the order of their flags, from the highest bit down.
const PROPERTIES: [(&str, Encoding); 14] = [
    ("content_type", Encoding::Short(BasicProperties::with_content_type)),
    ("content_encoding", Encoding::Short(BasicProperties::with_content_encoding)),
    ("headers", Encoding::Table),
    ("delivery_mode", Encoding::Octet(BasicProperties::with_delivery_mode)),
    ("priority", Encoding::Octet(BasicProperties::with_priority)),
    ("correlation_id", Encoding::Short(BasicProperties::with_correlation_id)),
    ("reply_to", Encoding::Short(BasicProperties::with_reply_to)),
    ("expiration", Encoding::Short(BasicProperties::with_expiration)),
    ("message_id", Encoding::Short(BasicProperties::with_message_id)),
    ("timestamp", Encoding::Time(BasicProperties::with_timestamp)),
    ("type", Encoding::Short(BasicProperties::with_type)),
    ("user_id", Encoding::Short(BasicProperties::with_user_id)),
    ("app_id", Encoding::Short(BasicProperties::with_app_id)),
    ("cluster_id", Encoding::Short(BasicProperties::with_cluster_id)),
];

/// Which of [`PROPERTIES`] the flags name. The two lowest bits mean nothing to lapin (the last would announce
/// another word of flags, which no version of the protocol has).
pub(super) fn present(flags: u16) -> impl Iterator<Item = (&'static str, Encoding)> {
    PROPERTIES.into_iter().enumerate().filter(move |(n, _)| flags & (1 << (15 - n)) != 0).map(|(_, it)| it)
}

/// Checks a content header frame's payload by the rules of amq-protocol's parser.
pub(super) fn check(payload: &[u8]) -> Result<(), Problem> {
    let mut rest = payload;
    // Class, weight and size of the body.
    rest.split_off(..12).ok_or(Problem::Length("the content header"))?;
    let flags = rest.try_get_u16().map_err(|_| Problem::Length("the content header"))?;
    for (name, encoding) in present(flags) {
        let wrong = Problem::Length(name);
        match encoding {
            Encoding::Short(_) => utf8(name, read::short(&mut rest).ok_or(wrong)?)?,
            Encoding::Table => check_values(read::long(&mut rest).ok_or(wrong)?, true, 1)?,
            Encoding::Octet(_) => drop(rest.split_off(..1).ok_or(wrong)?),
            Encoding::Time(_) => drop(rest.split_off(..8).ok_or(wrong)?),
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(Problem::Length("the properties")) }
}

fn utf8(what: &'static str, text: &[u8]) -> Result<(), Problem> {
    std::str::from_utf8(text).map(drop).map_err(|_| Problem::NotUtf8(what))
}

/// Checks the values of a table, which are named, or of an array.
fn check_values(mut values: &[u8], named: bool, depth: usize) -> Result<(), Problem> {
    if depth > MAX_DEPTH {
        return Err(Problem::TooDeep);
    }
    while !values.is_empty() {
        if named {
            utf8("a header name", read::short(&mut values).ok_or(Problem::Length("a header name"))?)?;
        }
        check_value(&mut values, depth)?;
    }
    Ok(())
}

fn check_value(rest: &mut &[u8], depth: usize) -> Result<(), Problem> {
    let wrong = Problem::Length("a header");
    let octet = rest.try_get_u8().map_err(|_| wrong)?;
    let size = match octet {
        b'F' | b'A' => return check_values(read::long(rest).ok_or(wrong)?, octet == b'F', depth + 1),
        b'S' | b'x' => read::length(rest).ok_or(wrong)?,
        b'V' => 0,
        b't' | b'b' | b'B' => 1,
        b's' | b'U' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'L' | b'l' | b'd' | b'T' => 8,
        _ => return Err(Problem::UnknownType(octet)),
    };
    rest.split_off(..size).map(drop).ok_or(wrong)
}
