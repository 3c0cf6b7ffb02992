//! Reads one JSON value and converts it to the type of a field.
//!
//! Serde's type errors name a Rust type and a byte offset. Errors about a record name the record, the field and the
//! value instead, so any JSON type is read first and checked here.

use std::borrow::Cow;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use crate::{
    quoted,
    quoted::shown_number,
    sensor::{Timestamp, fault::Fault, lenient},
};

/// Maximum size of any text field, in bytes, above the limits of all fields. It bounds what is compared before the
/// field's own check.
const MAX_TEXT: usize = 4096;

/// A JSON value, without the content of arrays and objects.
pub(super) enum Scalar<'a> {
    Null,
    Bool(bool),
    Integer(i64),
    /// Also an integer above `i64::MAX`.
    Number(f64),
    Text(Cow<'a, str>),
    /// A number that [`lenient::repair`] has marked.
    NotFinite,
    Array,
    Object,
}

/// Why a value is refused, without record and field.
pub(super) type Refused = (Fault, String);

impl<'a> Scalar<'a> {
    /// Converts the value and stores it. `null` means that the field is absent.
    pub(super) fn store<T>(
        self,
        slot: &mut Option<T>,
        convert: impl FnOnce(Self) -> Result<T, Refused>,
    ) -> Result<(), Refused> {
        match &self {
            Self::Null => return Ok(()),
            Self::NotFinite => return Err((Fault::NotFinite, "not a finite number".to_owned())),
            Self::Text(text) if text.len() > MAX_TEXT => {
                let given = format!("{} is {} bytes long", quoted(text), text.len());
                return Err((Fault::OutOfRange, format!("{given}; {MAX_TEXT} are allowed")));
            }
            _ => {}
        }
        let value = convert(self)?;
        if slot.is_some() {
            return Err((Fault::Duplicate, "given twice".to_owned()));
        }
        *slot = Some(value);
        Ok(())
    }

    pub(super) fn number(self) -> Result<f64, Refused> {
        match self {
            Self::Integer(value) => Ok(value as f64),
            Self::Number(value) => Ok(value),
            other => Err(other.is_not("a number")),
        }
    }

    pub(super) fn whole_number(self) -> Result<u64, Refused> {
        match self {
            Self::Integer(value) => u64::try_from(value)
                .map_err(|_| (Fault::OutOfRange, format!("{value} is negative or too large"))),
            Self::Number(value) if value.fract() == 0.0 && (0.0..1e15).contains(&value) => Ok(value as u64),
            other => Err(other.is_not("a whole number")),
        }
    }

    pub(super) fn text(self) -> Result<Cow<'a, str>, Refused> {
        if let Self::Text(text) = self { Ok(text) } else { Err(self.is_not("a string")) }
    }

    pub(super) fn bool(self) -> Result<bool, Refused> {
        if let Self::Bool(flag) = self { Ok(flag) } else { Err(self.is_not("true or false")) }
    }

    /// A time as RFC 3339 text or Unix seconds.
    pub(super) fn time(self) -> Result<Timestamp, Refused> {
        let seconds = match self {
            Self::Integer(seconds) => seconds as f64,
            Self::Number(seconds) => seconds,
            Self::Text(text) => {
                let refused = |error| (Fault::BadTime, format!("{}: {error}", quoted(&text)));
                return Timestamp::parse(&text).map_err(refused);
            }
            other => return Err(other.is_not("an RFC 3339 date and time, or Unix seconds")),
        };
        let refused = |error| (Fault::BadTime, format!("{}: {error}", shown_number(seconds)));
        Timestamp::from_unix_seconds(seconds).map_err(refused)
    }

    fn is_not(&self, expected: &str) -> Refused {
        (Fault::WrongType, format!("{self} is not {expected}"))
    }

    /// The value in an error about a record or a body, which leaves numbers out.
    pub(super) fn described(&self) -> String {
        match self {
            Self::Integer(_) | Self::Number(_) => "a number".to_owned(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::Integer(value) => write!(f, "the number {value}"),
            Self::Number(value) => write!(f, "the number {}", shown_number(*value)),
            Self::Text(text) => write!(f, "the string {}", quoted(text)),
            Self::NotFinite => f.write_str("a number that is not finite"),
            Self::Array => f.write_str("an array"),
            Self::Object => f.write_str("an object"),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        AnyValue(Skip).deserialize(deserializer)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    /// Accepts RFC 3339 text or a number of Unix seconds.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Scalar::deserialize(deserializer)?.time().map_err(|(_, message)| D::Error::custom(message))
    }
}

pub(super) trait ReadEntries<'de> {
    fn read<A: MapAccess<'de>>(self, entries: A) -> Result<(), A::Error>;
}

struct Skip;

impl<'de> ReadEntries<'de> for Skip {
    fn read<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// Reads a JSON value of any type. If it is an object, the argument reads its entries.
pub(super) struct AnyValue<R>(pub(super) R);

impl<'de, R: ReadEntries<'de>> DeserializeSeed<'de> for AnyValue<R> {
    type Value = Scalar<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Scalar<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: ReadEntries<'de>> Visitor<'de> for AnyValue<R> {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Bool(flag))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Integer(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar<'de>, E> {
        Ok(i64::try_from(value).map_or(Scalar::Number(value as f64), Scalar::Integer))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Number(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Text(text.to_owned().into()))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Scalar<'de>, E> {
        Ok(if text == lenient::NOT_FINITE { Scalar::NotFinite } else { Scalar::Text(text.into()) })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Scalar<'de>, A::Error> {
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Array)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Scalar<'de>, A::Error> {
        self.0.read(entries)?;
        Ok(Scalar::Object)
    }
}
