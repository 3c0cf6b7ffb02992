//! Values that are written as text or as a number.

use std::{fmt::Display, str::FromStr};

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

/// A `T` that is written as text, or as a number.
pub(super) fn text_or_number<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    let text = match Value::deserialize(deserializer)? {
        Value::String(text) => text,
        other => other.to_string(),
    };
    text.parse().map_err(D::Error::custom)
}
