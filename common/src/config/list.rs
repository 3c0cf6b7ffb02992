//! Lists that fit a single environment variable: `a,b` as well as `["a", "b"]`.
//! For `#[serde(with = "crate::config::list")]` on a `Vec`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::StrDeserializer;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

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
pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_any(ListOrText(PhantomData))
}

struct ListOrText<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListOrText<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list, or text with commas between items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(list)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.map(|item| T::deserialize(StrDeserializer::new(item))).collect()
    }
}
