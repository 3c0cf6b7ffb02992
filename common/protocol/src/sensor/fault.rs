//! Errors about sensor records.

use std::borrow::Cow;

use serde::Serialize;
use strum::{Display, IntoStaticStr};

/// The machine-readable kind of an error; [`BadRecord::message`] is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, IntoStaticStr, Serialize)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum Fault {
    /// The content type is not one of those for readings.
    UnsupportedMediaType,
    /// The body is not UTF-8, not JSON, or truncated.
    Malformed,
    /// No record has a value.
    Empty,
    /// More records than allowed in one body.
    TooManyRecords,
    /// A record is not an object, or a field has the wrong JSON type.
    WrongType,
    /// A required field is absent or null.
    MissingField,
    /// A plain reading has an unknown field, or a SenML record has one that must be understood.
    UnknownField,
    /// A field is given twice, or two fields exclude each other.
    Duplicate,
    /// An invalid device, metric, SenML name or id.
    BadName,
    /// A number or a length beyond its limit.
    OutOfRange,
    /// An invalid time.
    BadTime,
    /// A time too far ahead of the reading program's clock.
    ClockSkew,
    /// A time before the earliest one that is allowed.
    BeforeMinTime,
    /// A unit that is not in the registry.
    UnknownUnit,
    /// A unit that the metric cannot have, such as coulombs for a temperature.
    WrongUnit,
    /// An unsupported SenML version.
    UnsupportedVersion,
    /// A SenML record has text, data or only a sum, no number.
    NotNumeric,
    /// A number that is not finite: `NaN`, `Infinity`, or beyond the range of a double.
    NotFinite,
}

impl Fault {
    /// The code, as in the line protocol's `error <code> <message>` and the field `code` of problem details.
    pub fn code(self) -> &'static str {
        self.into()
    }

    /// This error about a field of a record.
    pub fn in_field(self, field: impl Into<Cow<'static, str>>, message: impl Into<String>) -> BadField {
        BadField { field: field.into(), message: message.into(), code: self }
    }
}

/// An error about a field of a record, without the record's position.
#[derive(Debug, Clone)]
pub struct BadField {
    field: Cow<'static, str>,
    message: String,
    code: Fault,
}

impl BadField {
    /// The kind of error.
    pub const fn code(&self) -> Fault {
        self.code
    }

    /// The error with the record's position.
    pub fn in_record(self, index: usize) -> BadRecord {
        BadRecord { index, field: self.field, message: self.message, code: self.code }
    }
}

/// An invalid record of a body. The text is one line: record, field, value, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("record {index}: {field}: {message}")]
pub struct BadRecord {
    /// The record's position in the body, from 0. SenML records with only base fields count. In a payload that a map
    /// takes, positions count the values that are readings or are refused.
    pub index: usize,
    /// The field's name in the body; `body` if the error is not about one field.
    pub field: Cow<'static, str>,
    /// The error, without record and field.
    pub message: String,
    /// The kind of error.
    pub code: Fault,
}
