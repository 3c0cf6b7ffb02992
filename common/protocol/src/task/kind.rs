//! The kind of a task, and topic bindings that match it.

use std::{borrow::Borrow, fmt, str::Split, sync::Arc};

use serde::Serialize;
use thiserror::Error;

/// Selects a task's handler: dot-separated words such as `reading.process`. Also the routing key. Cheap to clone.
///
/// 1 to [`Kind::MAX_BYTES`] ASCII letters, digits and `.`, `_`, `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Kind(Arc<str>);

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is not a valid kind.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
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

    /// Validates a kind, or a topic pattern of kinds, as lanes have them.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), for the words that are neither `*` nor `#`.
    pub fn parse_pattern(text: &str) -> Result<(), KindError> {
        let words: Vec<_> = text.split('.').filter(|word| !matches!(*word, "*" | "#")).collect();
        if words.is_empty() { Ok(()) } else { Self::parse(&words.join(".")).map(drop) }
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
///
/// The key may be a pattern too. Then a binding that matches it matches every key of the pattern.
///
/// Publishers choose keys, and operators write patterns, so the time is bounded for both: at most the product of their
/// numbers of words. Only the last `#` can need another number of words, because an earlier one that takes fewer words
/// leaves more for what follows it.
pub fn matches_binding(binding: &str, key: &str) -> bool {
    let (mut binding, mut key) = (binding.split('.'), key.split('.'));
    // The pattern after the last `#`, and the key without the words that this `#` takes.
    let mut last_hash: Option<(Split<'_, char>, Split<'_, char>)> = None;
    loop {
        let mut rest = key.clone();
        match (binding.next(), rest.next()) {
            (Some("#"), _) => last_hash = Some((binding.clone(), key.clone())),
            (None, None) => return true,
            (Some("*"), Some(head)) if head != "#" => key = rest,
            (Some(word), Some(head)) if word == head => key = rest,
            _ => {
                // The last `#` takes one word more.
                let Some((after, taken)) = &mut last_hash else { return false };
                if taken.next().is_none() {
                    return false;
                }
                (binding, key) = (after.clone(), taken.clone());
            }
        }
    }
}

/// Whether a routing key exists that both topic bindings match.
pub fn bindings_meet(one: &str, other: &str) -> bool {
    let (one, other): (Vec<_>, Vec<_>) = (one.split('.').collect(), other.split('.').collect());
    // Whether what follows the first words of both can match one key; from the ends to the beginnings.
    let mut next = vec![false; other.len() + 1];
    for first in (0..=one.len()).rev() {
        let mut meet = vec![false; other.len() + 1];
        for second in (0..=other.len()).rev() {
            meet[second] = match (one.get(first), other.get(second)) {
                (None, None) => true,
                // A `#` takes no word, or one more.
                (Some(&"#"), _) => next[second] || second < other.len() && meet[second + 1],
                (_, Some(&"#")) => meet[second + 1] || first < one.len() && next[second],
                (Some(one), Some(other)) => {
                    (one == other || *one == "*" || *other == "*") && next[second + 1]
                }
                _ => false,
            };
        }
        next = meet;
    }
    next[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_meet_if_a_key_matches_both() {
        for (one, other, meet) in [
            ("reading.#", "reading.process", true),
            ("reading.#", "*.process", true),
            ("reading.#", "#", true),
            ("reading.#", "reading", true),
            ("reading.*", "reading", false),
            ("reading.#", "window.#", false),
            ("a.#.z", "#.y", false),
            ("a.#.z", "#.b.#", true),
            ("a.*", "*.b.c", false),
            ("a.*.c", "#.b.*", true),
            ("", "#", true),
            ("", "a", false),
        ] {
            assert_eq!(bindings_meet(one, other), meet, "{one} {other}");
            assert_eq!(bindings_meet(other, one), meet, "{other} {one}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_key_that_two_bindings_match_makes_them_meet(
            one in "[ab*#]([.][ab*#]){0,4}", other in "[ab*#]([.][ab*#]){0,4}", key in "[ab]([.][ab]){0,5}",
        ) {
            let both = matches_binding(&one, &key) && matches_binding(&other, &key);
            proptest::prop_assert!(!both || bindings_meet(&one, &other));
        }
    }

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

    /// With backtracking into every `#`, this pattern takes longer than the age of the universe.
    #[test]
    fn a_binding_with_many_hashes_is_compared_in_bounded_time() {
        let binding = format!("{}end", "#.a.".repeat(60));
        let key = vec!["a"; 128].join(".");
        let started = std::time::Instant::now();
        assert!(!matches_binding(&binding, &key));
        assert!(matches_binding(&binding, &format!("{key}.end")));
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
    }

    /// All patterns and keys of up to four words, compared with the definition.
    #[test]
    fn bindings_match_as_defined() {
        fn defined(binding: &[&str], key: &[&str]) -> bool {
            match (binding.split_first(), key.split_first()) {
                (None, None) => true,
                (Some((&"#", rest)), _) => {
                    defined(rest, key) || (!key.is_empty() && defined(binding, &key[1..]))
                }
                (Some((&"*", rest)), Some((_, key))) => defined(rest, key),
                (Some((word, rest)), Some((head, key))) if word == head => defined(rest, key),
                _ => false,
            }
        }
        let texts = |words: &[&'static str]| {
            let mut all: Vec<Vec<&'static str>> = vec![Vec::new()];
            let mut longest = all.clone();
            for _ in 0..4 {
                longest = longest
                    .iter()
                    .flat_map(|text| words.iter().map(move |word| [text.as_slice(), &[*word]].concat()))
                    .collect();
                all.extend(longest.iter().cloned());
            }
            all.remove(0);
            all
        };
        for binding in texts(&["a", "b", "*", "#"]) {
            for key in texts(&["a", "b", ""]) {
                let (pattern, text) = (binding.join("."), key.join("."));
                assert_eq!(matches_binding(&pattern, &text), defined(&binding, &key), "{pattern} {text}");
            }
        }
    }

    #[test]
    fn a_binding_matches_a_pattern_if_it_matches_all_its_keys() {
        for (binding, pattern, matches) in [
            ("image.#", "image.*", true),
            ("image.#", "image.#", true),
            ("image.*", "image.*", true),
            ("#", "*.a.#", true),
            ("image.*", "image.#", false),
            ("image.*", "#", false),
            ("image.resize", "image.*", false),
            ("a.*.*", "a.#.*", false),
        ] {
            assert_eq!(matches_binding(binding, pattern), matches, "{binding} {pattern}");
        }
    }

    #[test]
    fn words_of_a_pattern_are_those_of_a_kind_or_wildcards() {
        for valid in ["image.*", "#", "*", "mail.#.sent", "image.resize"] {
            assert_eq!(Kind::parse_pattern(valid), Ok(()), "{valid}");
        }
        for invalid in ["", "image.re*", "a b.*", "image.**"] {
            assert!(Kind::parse_pattern(invalid).is_err(), "{invalid}");
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
