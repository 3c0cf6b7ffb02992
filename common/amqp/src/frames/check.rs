//! Checks without allocating whether lapin can parse a content header.

use std::fmt;

use super::{MAX_DEPTH, cursor::Cursor};

/// Why lapin cannot parse a content header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// A short string is not UTF-8.
    NotUtf8(&'static str),
    /// Tables or arrays are nested deeper than [`MAX_DEPTH`].
    TooDeep,
    /// A value's type octet is unknown.
    UnknownType(u8),
    /// A part is longer or shorter than its encoded length.
    Length(&'static str),
    /// The frame is larger than the negotiated frame_max, both in bytes.
    TooLarge { bytes: usize, limit: usize },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUtf8(what) => write!(f, "{what} is not UTF-8"),
            Self::TooDeep => write!(f, "headers are nested more than {MAX_DEPTH} levels deep"),
            Self::UnknownType(octet) => write!(f, "a header has the unknown type {octet:#04x}"),
            Self::Length(what) => write!(f, "the length of {what} is wrong"),
            Self::TooLarge { bytes, limit } => {
                write!(f, "the header frame has {bytes} bytes, frame_max is {limit}")
            }
        }
    }
}

/// How a property is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Short,
    Table,
    Octet,
    Time,
}

/// The properties in the order of their flags, from the highest bit down.
pub(super) const PROPERTIES: [(&str, Encoding); 14] = [
    ("content_type", Encoding::Short),
    ("content_encoding", Encoding::Short),
    ("headers", Encoding::Table),
    ("delivery_mode", Encoding::Octet),
    ("priority", Encoding::Octet),
    ("correlation_id", Encoding::Short),
    ("reply_to", Encoding::Short),
    ("expiration", Encoding::Short),
    ("message_id", Encoding::Short),
    ("timestamp", Encoding::Time),
    ("type", Encoding::Short),
    ("user_id", Encoding::Short),
    ("app_id", Encoding::Short),
    ("cluster_id", Encoding::Short),
];

/// Which of [`PROPERTIES`] the flags name. The two lowest bits mean nothing to lapin (the last would announce
/// another word of flags, which no version of the protocol has).
pub(super) fn present(flags: u16) -> impl Iterator<Item = (&'static str, Encoding)> {
    PROPERTIES.into_iter().enumerate().filter(move |(n, _)| flags & (1 << (15 - n)) != 0).map(|(_, it)| it)
}

/// Bytes before the flags: class, weight and size of the body.
pub(super) const FIXED: usize = 12;

/// Checks a content header frame's payload by the rules of amq-protocol's parser.
pub(super) fn check(payload: &[u8]) -> Result<(), Problem> {
    let mut rest = Cursor::new(payload);
    let short = || Problem::Length("the content header");
    rest.take(FIXED).ok_or_else(short)?;
    let flags = rest.u16().ok_or_else(short)?;
    for (name, encoding) in present(flags) {
        let fits = match encoding {
            Encoding::Short => match rest.short() {
                Some(text) => {
                    std::str::from_utf8(text).map_err(|_| Problem::NotUtf8(name))?;
                    true
                }
                None => false,
            },
            Encoding::Table => match rest.long() {
                Some(table) => {
                    check_table(table, 1)?;
                    true
                }
                None => false,
            },
            Encoding::Octet => rest.u8().is_some(),
            Encoding::Time => rest.u64().is_some(),
        };
        if !fits {
            return Err(Problem::Length(name));
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(Problem::Length("the properties")) }
}

fn check_table(table: &[u8], depth: usize) -> Result<(), Problem> {
    if depth > MAX_DEPTH {
        return Err(Problem::TooDeep);
    }
    let mut rest = Cursor::new(table);
    while !rest.is_empty() {
        let name = rest.short().ok_or(Problem::Length("a header name"))?;
        std::str::from_utf8(name).map_err(|_| Problem::NotUtf8("a header name"))?;
        check_value(&mut rest, depth)?;
    }
    Ok(())
}

fn check_array(array: &[u8], depth: usize) -> Result<(), Problem> {
    if depth > MAX_DEPTH {
        return Err(Problem::TooDeep);
    }
    let mut rest = Cursor::new(array);
    while !rest.is_empty() {
        check_value(&mut rest, depth)?;
    }
    Ok(())
}

fn check_value(rest: &mut Cursor<'_>, depth: usize) -> Result<(), Problem> {
    let wrong = || Problem::Length("a header");
    let octet = rest.u8().ok_or_else(wrong)?;
    match octet {
        b'F' => check_table(rest.long().ok_or_else(wrong)?, depth + 1),
        b'A' => check_array(rest.long().ok_or_else(wrong)?, depth + 1),
        b'S' | b'x' => rest.long().map(drop).ok_or_else(wrong),
        _ => {
            let size = fixed_size(octet).ok_or(Problem::UnknownType(octet))?;
            rest.take(size).map(drop).ok_or_else(wrong)
        }
    }
}

/// Size in bytes of a value of a fixed-size type.
fn fixed_size(octet: u8) -> Option<usize> {
    match octet {
        b'V' => Some(0),
        b't' | b'b' | b'B' => Some(1),
        b's' | b'U' | b'u' => Some(2),
        b'I' | b'i' | b'f' => Some(4),
        b'D' => Some(5),
        b'L' | b'l' | b'd' | b'T' => Some(8),
        _ => None,
    }
}
