//! Lists that fit a single environment variable: `a,b` as well as `["a", "b"]`.
//! For `#[serde(with = "crate::config::list")]` on a `Vec`.

use serde::{
    Serialize, Serializer,
    de::{Deserialize, DeserializeOwned, Deserializer, Error},
};
use serde_json::Value;

/// Serializes a list.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<T: Serialize, S: Serializer>(items: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    items.serialize(serializer)
}

/// Deserializes a list, or text with items separated by commas.
///
/// # Errors
/// An item is not a valid `T`.
pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let items = match Value::deserialize(deserializer)? {
        Value::Array(items) => items,
        Value::String(text) => {
            text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect()
        }
        other => {
            let problem =
                format!("invalid value {other}, expected a list, or text with commas between items");
            return Err(D::Error::custom(problem));
        }
    };
    items.into_iter().map(|item| T::deserialize(item).map_err(D::Error::custom)).collect()
}
