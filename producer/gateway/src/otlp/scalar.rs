//! Reads the fields of OTLP's JSON. A value of another type is as good as none, and is not kept: so it costs only its data
//! point, and no memory. Null is the default of every field, as ProtoJSON has it.

use std::{fmt, str::FromStr};

use serde::{
    Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// The `aggregation_temporality` of a sum whose values are increases.
pub(super) const DELTA: i32 = 1;
/// That of a sum whose values are totals.
pub(super) const CUMULATIVE: i32 = 2;
/// The bit of `flags` of a point in JSON whose flags are no number.
pub(super) const NO_FLAGS: u32 = 1 << 31;

/// A JSON value, without the content of arrays and objects.
enum Scalar {
    Null,
    Bool(bool),
    Integer(i64),
    Unsigned(u64),
    Number(f64),
    Text(String),
    List,
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Scalar, E> {
        Ok(Scalar::Bool(flag))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(i64::try_from(value).map_or(Scalar::Unsigned(value), Scalar::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Scalar, A::Error> {
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Scalar, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::List)
    }
}

fn scalar<'de, D: Deserializer<'de>>(value: D) -> Result<Scalar, D::Error> {
    value.deserialize_any(ScalarVisitor)
}

pub(super) fn optional_text<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    Ok(if let Scalar::Text(text) = scalar(value)? { Some(text) } else { None })
}

pub(super) fn text<'de, D: Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    optional_text(value).map(Option::unwrap_or_default)
}

pub(super) fn optional_boolean<'de, D: Deserializer<'de>>(value: D) -> Result<Option<bool>, D::Error> {
    Ok(if let Scalar::Bool(flag) = scalar(value)? { Some(flag) } else { None })
}

pub(super) fn boolean<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    optional_boolean(value).map(Option::unwrap_or_default)
}

/// A double, which is a text if JSON has no form for it.
pub(super) fn number<'de, D: Deserializer<'de>>(value: D) -> Result<Option<f64>, D::Error> {
    Ok(match scalar(value)? {
        Scalar::Integer(value) => Some(value as f64),
        Scalar::Unsigned(value) => Some(value as f64),
        Scalar::Number(value) => Some(value),
        Scalar::Text(text) => text.parse().ok(),
        _ => None,
    })
}

/// A 64-bit integer, which is a text in JSON.
pub(super) fn integer<'de, D: Deserializer<'de>>(value: D) -> Result<Option<i64>, D::Error> {
    whole(value).map(|read| read.unwrap_or_default())
}

/// A whole number. The outer [`None`] is a value that is none, and the inner one is null.
fn whole<'de, D: Deserializer<'de>, T: FromStr + TryFrom<i64> + TryFrom<u64>>(
    value: D,
) -> Result<Option<Option<T>>, D::Error> {
    Ok(match scalar(value)? {
        Scalar::Null => Some(None),
        Scalar::Integer(value) => value.try_into().ok().map(Some),
        Scalar::Unsigned(value) => value.try_into().ok().map(Some),
        Scalar::Text(text) => text.parse().ok().map(Some),
        _ => None,
    })
}

/// A time that is no number is one beyond all bounds.
pub(super) fn nanoseconds<'de, D: Deserializer<'de>>(value: D) -> Result<u64, D::Error> {
    whole(value).map(|read| read.map_or(u64::MAX, Option::unwrap_or_default))
}

pub(super) fn flags<'de, D: Deserializer<'de>>(value: D) -> Result<u32, D::Error> {
    whole(value).map(|read| read.map_or(NO_FLAGS, Option::unwrap_or_default))
}

/// A number, or the name that ProtoJSON has for it. 0 is unspecified.
pub(super) fn temporality<'de, D: Deserializer<'de>>(value: D) -> Result<i32, D::Error> {
    Ok(match scalar(value)? {
        Scalar::Integer(value) => value.try_into().unwrap_or_default(),
        Scalar::Text(text) => match &*text {
            "AGGREGATION_TEMPORALITY_DELTA" => DELTA,
            "AGGREGATION_TEMPORALITY_CUMULATIVE" => CUMULATIVE,
            _ => 0,
        },
        _ => 0,
    })
}
