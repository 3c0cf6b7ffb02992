//! The kind of a task, and topic bindings that match it.

use std::{borrow::Borrow, sync::Arc};

use derive_more::Display;
use serde::Serialize;
use thiserror::Error;

/// Selects a task's handler: dot-separated words such as `reading.process`. Also the routing key. Cheap to clone.
///
/// 1 to [`Kind::MAX_BYTES`] ASCII letters, digits and `.`, `_`, `-`.
#[derive(Clone, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Kind(Arc<str>);

/// Why a text is not a valid kind.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KindError {
    /// The text is empty.
    #[error("kind is empty")]
    Empty,
    /// Longer than [`Kind::MAX_BYTES`].
    #[error("kind has {0} bytes, at most {max} are allowed", max = Kind::MAX_BYTES)]
    TooLong(usize),
    /// The text contains a character that is not allowed in routing keys and metric labels.
    #[error("kind {0:?} may hold only letters, digits, '.', '_' and '-'")]
    Character(String),
}

impl Kind {
    /// The maximum size of a kind, in bytes. An AMQP routing key has at most 255.
    pub const MAX_BYTES: usize = 127;

    /// Validates a kind from outside.
    ///
    /// # Errors
    /// [`KindError`] if the text is empty, too long, or contains other characters than ASCII letters, digits,
    /// `.`, `_` and `-`.
    pub fn parse(text: &str) -> Result<Self, KindError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        match text {
            "" => Err(KindError::Empty),
            text if text.len() > Self::MAX_BYTES => Err(KindError::TooLong(text.len())),
            text if !text.chars().all(allowed) => Err(KindError::Character(text.into())),
            text => Ok(Self(text.into())),
        }
    }

    /// The kind as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Kind {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Whether a topic binding matches a routing key: `*` matches one word, `#` zero or more words.
pub fn matches_binding(binding: &str, key: &str) -> bool {
    fn walk(binding: &[&str], key: &[&str]) -> bool {
        match (binding.split_first(), key.split_first()) {
            (None, None) => true,
            (Some((&"#", rest)), _) => walk(rest, key) || (!key.is_empty() && walk(binding, &key[1..])),
            (Some((&"*", rest)), Some((_, key))) => walk(rest, key),
            (Some((word, rest)), Some((head, key))) if word == head => walk(rest, key),
            _ => false,
        }
    }
    let words = |text| -> Vec<&str> { str::split(text, '.').collect() };
    walk(&words(binding), &words(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_match_as_in_the_broker() {
        for (binding, key, matches) in [
            ("reading.#", "reading.process", true),
            ("reading.#", "reading", true),
            ("reading.#", "reading.a.b", true),
            ("reading.*", "reading", false),
            ("reading.*", "reading.a.b", false),
            ("#", "", true),
            ("#.alert", "a.b.alert", true),
            ("a.#.z", "a.z", true),
            ("a.#.z", "a.b.c", false),
            ("*.b.#", "a.b", true),
        ] {
            assert_eq!(matches_binding(binding, key), matches, "{binding} {key}");
        }
    }

    #[test]
    fn kinds_are_limited_to_routing_key_characters() {
        assert!(Kind::parse("reading.process").is_ok());
        assert_eq!(Kind::parse("").unwrap_err().to_string(), "kind is empty");
        assert_eq!(
            Kind::parse("a b").unwrap_err().to_string(),
            "kind \"a b\" may hold only letters, digits, '.', '_' and '-'"
        );
    }
}
