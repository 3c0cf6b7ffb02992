//! The values of message headers that applications set and read.

use std::fmt;

use amq_protocol::types::AMQPValue;

use super::header;

/// The value of a header.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum HeaderValue<'a> {
    /// A text.
    Text(&'a str),
    /// An integer of any width.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
    /// True or false.
    Bool(bool),
}

impl fmt::Display for HeaderValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
            Self::Bool(value) => value.fmt(f),
        }
    }
}

impl<'a> From<&'a str> for HeaderValue<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for HeaderValue<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for HeaderValue<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<i32> for HeaderValue<'_> {
    fn from(number: i32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<u32> for HeaderValue<'_> {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<f64> for HeaderValue<'_> {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<bool> for HeaderValue<'_> {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl<'a> HeaderValue<'a> {
    /// The value of a header. [`None`] for tables, arrays, bytes that are no text, and other types.
    pub fn read(value: &'a AMQPValue) -> Option<Self> {
        Some(match value {
            AMQPValue::LongString(text) => Self::Text(str::from_utf8(text.as_bytes()).ok()?),
            AMQPValue::ShortString(text) => Self::Text(text.as_str()),
            AMQPValue::Boolean(value) => Self::Bool(*value),
            AMQPValue::Float(number) => Self::Float((*number).into()),
            AMQPValue::Double(number) => Self::Float(*number),
            number => Self::Integer(header::integer(number)?),
        })
    }

    /// The text, if it is one.
    pub fn as_str(self) -> Option<&'a str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The integer, if it is one.
    pub fn as_i64(self) -> Option<i64> {
        if let Self::Integer(number) = self { Some(number) } else { None }
    }

    /// The number, if it is one; an integer as well.
    pub fn as_f64(self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(number),
            Self::Integer(number) => Some(number as f64),
            _ => None,
        }
    }

    /// The truth value, if it is one.
    pub fn as_bool(self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(value) } else { None }
    }

    /// The value for a message.
    pub fn to_amqp(self) -> AMQPValue {
        match self {
            Self::Text(text) => AMQPValue::LongString(text.as_bytes().into()),
            Self::Integer(number) => AMQPValue::LongLongInt(number),
            Self::Float(number) => AMQPValue::Double(number),
            Self::Bool(value) => AMQPValue::Boolean(value),
        }
    }
}
