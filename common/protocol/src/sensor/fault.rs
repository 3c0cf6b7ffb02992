//! What is wrong with a record, for people and for programs.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

/// The kind of a fault: what a program may act on, while the message is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fault {
    /// The content type is none that carries readings.
    UnsupportedMediaType,
    /// Not JSON, not UTF-8, or cut off.
    Malformed,
    /// No record that measures something.
    Empty,
    /// More records than allowed in one body.
    TooManyRecords,
    /// A record is no object, or a field has another JSON type than it must.
    WrongType,
    /// A required field is absent or null.
    MissingField,
    /// A field that a plain reading has not, or a SenML one that must be understood and is not.
    UnknownField,
    /// A field, or one of several that exclude each other, is given twice.
    Duplicate,
    /// A device, metric, SenML name or id that is not allowed.
    BadName,
    /// A number or a length beyond its limit.
    OutOfRange,
    /// A time that is none.
    BadTime,
    /// A time too far ahead of the clock of the program that reads it.
    ClockSkew,
    /// A unit that is not in the registry.
    UnknownUnit,
    /// A SenML version that is not understood.
    UnsupportedVersion,
    /// A SenML record that carries text, data or only a sum.
    NotNumeric,
}

impl Fault {
    /// The code, as in the line protocol's `error <code> <message>` and a problem's `code`.
    pub const fn code(self) -> &'static str {
        match self {
            Self::UnsupportedMediaType => "unsupported-media-type",
            Self::Malformed => "malformed",
            Self::Empty => "empty",
            Self::TooManyRecords => "too-many-records",
            Self::WrongType => "wrong-type",
            Self::MissingField => "missing-field",
            Self::UnknownField => "unknown-field",
            Self::Duplicate => "duplicate",
            Self::BadName => "bad-name",
            Self::OutOfRange => "out-of-range",
            Self::BadTime => "bad-time",
            Self::ClockSkew => "clock-skew",
            Self::UnknownUnit => "unknown-unit",
            Self::UnsupportedVersion => "unsupported-version",
            Self::NotNumeric => "not-numeric",
        }
    }

    /// The HTTP status that says it: 415 and 413 for what they are made for, 400 for bytes that
    /// are not JSON, 422 for JSON that is no reading.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::UnsupportedMediaType => 415,
            Self::TooManyRecords => 413,
            Self::Malformed => 400,
            _ => 422,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// The first record of a body that cannot be taken. One line: record, field, what is wrong with
/// which value, what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("record {index}: {field}: {message}")]
pub struct BadRecord {
    /// The record's place in the body, from 0; a SenML record that only sets base fields counts.
    pub index: usize,
    /// The field, by its name in the body; `body` where no field can be named.
    pub field: Cow<'static, str>,
    /// What is wrong, without record and field.
    pub message: String,
    /// The kind.
    pub code: Fault,
}

impl BadRecord {
    /// Puts one together.
    pub fn new(index: usize, field: impl Into<Cow<'static, str>>, code: Fault, message: String) -> Self {
        Self { index, field: field.into(), message, code }
    }
}

/// A text from outside, fit for one line of a log: quoted, escaped, at most 60 characters.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
