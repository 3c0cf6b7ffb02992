//! One field's value, of the JSON type it must have.
//!
//! serde's own type errors name a Rust type and a byte; these name the record, the field and the
//! value. The typed error waits in [`Errors`] while serde's unwinds.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::sensor::Timestamp;
use crate::sensor::fault::{BadRecord, Fault, shown};

/// The longest text of any field, in bytes. Every text that a reading may have is shorter; the limit bounds what is
/// copied and compared before the field's own check.
const LONGEST_TEXT: usize = 4096;

/// Where a typed error waits until the parser has returned.
#[derive(Default)]
pub(super) struct Errors {
    first: RefCell<Option<BadRecord>>,
}

impl Errors {
    /// Keeps the error and gives serde one of its own to unwind with.
    pub(super) fn keep<E: de::Error>(&self, error: BadRecord) -> E {
        self.first.borrow_mut().get_or_insert(error);
        E::custom("a record was refused")
    }

    pub(super) fn take(&self) -> Option<BadRecord> {
        self.first.borrow_mut().take()
    }
}

/// Reads one value. `null` stands for an absent field.
#[derive(Clone, Copy)]
pub(super) struct Field<'e, K> {
    pub(super) index: usize,
    pub(super) name: &'static str,
    pub(super) errors: &'e Errors,
    pub(super) kind: K,
}

/// What a field must be.
pub(super) trait Kind<'de>: Copy {
    /// What comes of it.
    type Out;
    /// How an error calls it.
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
/// An integer from 0 on.
#[derive(Clone, Copy)]
pub(super) struct Whole;
/// A string.
#[derive(Clone, Copy)]
pub(super) struct Text;
/// true or false.
#[derive(Clone, Copy)]
pub(super) struct Flag;
/// RFC 3339 or Unix seconds.
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
        let refused = |error| (Fault::BadTime, format!("{}: {error}", shown(&text)));
        Timestamp::parse(&text).map(Some).map_err(refused)
    }
}

impl<K> Field<'_, K> {
    fn too_long<E: de::Error>(self, text: &str) -> E {
        let message = format!("{} is {} bytes long; {LONGEST_TEXT} are allowed", shown(text), text.len());
        self.errors.keep(BadRecord::new(self.index, self.name, Fault::OutOfRange, message))
    }

    fn settle<'de, E: de::Error>(
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
        self.settle(self.kind.number(value), || format!("the number {value}"))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        self.settle(self.kind.integer(value.into()), || format!("the number {value}"))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        self.settle(self.kind.integer(value.into()), || format!("the number {value}"))
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Self::Value, E> {
        self.settle(self.kind.bool(flag), || flag.to_string())
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        if text.len() > LONGEST_TEXT {
            return Err(self.too_long(text));
        }
        self.settle(self.kind.text(Cow::Borrowed(text)), || format!("the string {}", shown(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if text.len() > LONGEST_TEXT {
            return Err(self.too_long(text));
        }
        self.settle(self.kind.text(Cow::Owned(text.to_owned())), || format!("the string {}", shown(text)))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self::Value, A::Error> {
        while values.next_element::<IgnoredAny>()?.is_some() {}
        self.settle(Ok(None), || "an array".to_owned())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.settle(Ok(None), || "an object".to_owned())
    }
}
