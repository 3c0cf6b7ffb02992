//! Parses the value of one field and checks its JSON type.
//!
//! Serde's type errors name a Rust type and a byte offset; these errors name the record, the field and the
//! value. [`Errors`] keeps the typed error while a serde error propagates through the parser.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::sensor::Timestamp;
use crate::sensor::fault::{BadRecord, Fault, quoted};

/// Maximum size of any text field, in bytes, above the limits of all fields. It bounds what is copied and
/// compared before the field's own check.
const MAX_TEXT: usize = 4096;

/// Keeps the first typed error until the parser has returned.
#[derive(Default)]
pub(super) struct Errors {
    first: RefCell<Option<BadRecord>>,
}

impl Errors {
    /// Keeps `error` if it is the first, and returns a serde error to abort parsing with.
    pub(super) fn keep<E: de::Error>(&self, error: BadRecord) -> E {
        self.first.borrow_mut().get_or_insert(error);
        E::custom("invalid record")
    }

    pub(super) fn take(&self) -> Option<BadRecord> {
        self.first.borrow_mut().take()
    }
}

/// Parses the value of one field. `null` means that the field is absent.
#[derive(Clone, Copy)]
pub(super) struct Field<'e, K> {
    pub(super) index: usize,
    pub(super) name: &'static str,
    pub(super) errors: &'e Errors,
    pub(super) kind: K,
}

/// The type of a field. The methods convert a JSON value; `Ok(None)` means that it has the wrong JSON type.
pub(super) trait Kind<'de>: Copy {
    /// The converted value.
    type Out;
    /// The expected type in error messages.
    const EXPECTED: &'static str;

    fn number(self, _: f64) -> Result<Option<Self::Out>, (Fault, String)> {
        Ok(None)
    }
    fn integer(self, value: i128) -> Result<Option<Self::Out>, (Fault, String)> {
        self.number(value as f64)
    }
    fn text(self, _: Cow<'de, str>) -> Result<Option<Self::Out>, (Fault, String)> {
        Ok(None)
    }
    fn bool(self, _: bool) -> Result<Option<Self::Out>, (Fault, String)> {
        Ok(None)
    }
}

/// A finite number.
#[derive(Clone, Copy)]
pub(super) struct Number;
/// A non-negative integer.
#[derive(Clone, Copy)]
pub(super) struct Whole;
/// A string.
#[derive(Clone, Copy)]
pub(super) struct Text;
/// A boolean.
#[derive(Clone, Copy)]
pub(super) struct Flag;
/// A time: RFC 3339 text or Unix seconds.
#[derive(Clone, Copy)]
pub(super) struct Instant;

impl<'de> Kind<'de> for Number {
    type Out = f64;
    const EXPECTED: &'static str = "a number";

    fn number(self, value: f64) -> Result<Option<f64>, (Fault, String)> {
        Ok(Some(value))
    }
}

impl<'de> Kind<'de> for Whole {
    type Out = u64;
    const EXPECTED: &'static str = "a whole number";

    fn integer(self, value: i128) -> Result<Option<u64>, (Fault, String)> {
        let refused = |_| (Fault::OutOfRange, format!("{value} is negative or too large"));
        u64::try_from(value).map(Some).map_err(refused)
    }

    fn number(self, value: f64) -> Result<Option<u64>, (Fault, String)> {
        if value.fract() == 0.0 && (0.0..1e15).contains(&value) { Ok(Some(value as u64)) } else { Ok(None) }
    }
}

impl<'de> Kind<'de> for Text {
    type Out = Cow<'de, str>;
    const EXPECTED: &'static str = "a string";

    fn text(self, text: Cow<'de, str>) -> Result<Option<Cow<'de, str>>, (Fault, String)> {
        Ok(Some(text))
    }
}

impl<'de> Kind<'de> for Flag {
    type Out = bool;
    const EXPECTED: &'static str = "true or false";

    fn bool(self, flag: bool) -> Result<Option<bool>, (Fault, String)> {
        Ok(Some(flag))
    }
}

impl<'de> Kind<'de> for Instant {
    type Out = Timestamp;
    const EXPECTED: &'static str = "an RFC 3339 date and time, or Unix seconds";

    fn number(self, seconds: f64) -> Result<Option<Timestamp>, (Fault, String)> {
        let refused = |error| (Fault::BadTime, format!("{seconds}: {error}"));
        Timestamp::from_unix_seconds(seconds).map(Some).map_err(refused)
    }

    fn text(self, text: Cow<'de, str>) -> Result<Option<Timestamp>, (Fault, String)> {
        let refused = |error| (Fault::BadTime, format!("{}: {error}", quoted(&text)));
        Timestamp::parse(&text).map(Some).map_err(refused)
    }
}

impl<K> Field<'_, K> {
    fn too_long<E: de::Error>(self, text: &str) -> E {
        let message = format!("{} is {} bytes long; {MAX_TEXT} are allowed", quoted(text), text.len());
        self.errors.keep(BadRecord::new(self.index, self.name, Fault::OutOfRange, message))
    }

    fn checked<'de, E: de::Error>(
        self,
        outcome: Result<Option<K::Out>, (Fault, String)>,
        got: impl FnOnce() -> String,
    ) -> Result<Option<K::Out>, E>
    where
        K: Kind<'de>,
    {
        let (code, message) = match outcome {
            Ok(Some(value)) => return Ok(Some(value)),
            Ok(None) => (Fault::WrongType, format!("{} is not {}", got(), K::EXPECTED)),
            Err(refused) => refused,
        };
        Err(self.errors.keep(BadRecord::new(self.index, self.name, code, message)))
    }
}

impl<'de, K: Kind<'de>> DeserializeSeed<'de> for Field<'_, K> {
    type Value = Option<K::Out>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, K: Kind<'de>> Visitor<'de> for Field<'_, K> {
    type Value = Option<K::Out>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(K::EXPECTED)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        self.checked(self.kind.number(value), || format!("the number {value}"))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        self.checked(self.kind.integer(value.into()), || format!("the number {value}"))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        self.checked(self.kind.integer(value.into()), || format!("the number {value}"))
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Self::Value, E> {
        self.checked(self.kind.bool(flag), || flag.to_string())
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        if text.len() > MAX_TEXT {
            return Err(self.too_long(text));
        }
        self.checked(self.kind.text(Cow::Borrowed(text)), || format!("the string {}", quoted(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if text.len() > MAX_TEXT {
            return Err(self.too_long(text));
        }
        self.checked(self.kind.text(Cow::Owned(text.to_owned())), || format!("the string {}", quoted(text)))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self::Value, A::Error> {
        while values.next_element::<IgnoredAny>()?.is_some() {}
        self.checked(Ok(None), || "an array".to_owned())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.checked(Ok(None), || "an object".to_owned())
    }
}
