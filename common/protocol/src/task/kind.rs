//! The kind of a task, and which binding takes it.

use std::{borrow::Borrow, fmt, sync::Arc};

use thiserror::Error;

/// Names what is to be done: dot-separated words, such as `reading.process`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind(Arc<str>);

/// Why a text is no kind.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KindError {
    /// Nothing in it.
    #[error("kind is empty")]
    Empty,
    /// Longer than a routing key may be.
    #[error("kind has {0} bytes, at most {max} are allowed", max = Kind::MAX_BYTES)]
    TooLong(usize),
    /// A character that would not survive a routing key or a metric label.
    #[error("kind {0:?} may hold only letters, digits, '.', '_' and '-'")]
    Character(String),
}

impl Kind {
    /// The longest kind, in bytes: an AMQP routing key holds 255.
    pub const MAX_BYTES: usize = 127;

    /// Takes a text that somebody else wrote.
    ///
    /// # Errors
    /// [`KindError`] when it is empty, too long, or holds other than letters, digits and `._-`.
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

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for Kind {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl serde::Serialize for Kind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Whether a topic binding (`*` one word, `#` any number of words) takes a routing key.
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
    fn bindings_match_as_the_broker_matches() {
        for (binding, key, taken) in [
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
            assert_eq!(matches_binding(binding, key), taken, "{binding} {key}");
        }
    }

    #[test]
    fn kinds_are_routing_keys() {
        assert!(Kind::parse("reading.process").is_ok());
        assert_eq!(Kind::parse("").unwrap_err().to_string(), "kind is empty");
        assert_eq!(
            Kind::parse("a b").unwrap_err().to_string(),
            "kind \"a b\" may hold only letters, digits, '.', '_' and '-'"
        );
    }
}
