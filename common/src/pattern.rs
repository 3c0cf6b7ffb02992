//! Patterns of names, such as those of devices.

use std::fmt;

use thiserror::Error;

/// A name, or a prefix and `*`, which stands for all names that begin with it. `*` alone stands for every name.
///
/// The same in SQL is `garenne_database::muting::device_matches`.
#[derive(Clone, PartialEq, Eq)]
pub struct NamePattern(String);

/// A text that is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?}; expected a name, or a prefix and \"*\" at its end")]
pub struct InvalidPattern(String);

impl NamePattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// The text is empty, or has a `*` before its end.
    pub fn parse(text: &str) -> Result<Self, InvalidPattern> {
        let is_valid = !text.is_empty() && !text.strip_suffix('*').unwrap_or(text).contains('*');
        if is_valid { Ok(Self(text.to_owned())) } else { Err(InvalidPattern(text.to_owned())) }
    }

    /// The pattern of every name.
    pub fn any() -> Self {
        Self("*".to_owned())
    }

    /// Whether it stands for every name.
    pub fn is_any(&self) -> bool {
        self.0 == "*"
    }

    /// The pattern of one name, which has no `*`.
    pub fn of_name(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// Whether it stands for a name, or for all names of another pattern.
    pub fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => self.0 == name,
        }
    }

    /// The text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for NamePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_or_a_prefix() {
        let matching = |pattern: &str| {
            let pattern = NamePattern::parse(pattern).unwrap();
            ["lab", "lab-", "lab-1", "Lab-1", "", "lab-*", "lab-1*", "*"].map(|name| pattern.matches(name))
        };
        assert_eq!(matching("*"), [true; 8]);
        assert!(NamePattern::any().is_any() && !NamePattern::parse("lab-*").unwrap().is_any());
        assert_eq!(matching("lab"), [true, false, false, false, false, false, false, false]);
        assert_eq!(matching("lab-*"), [false, true, true, false, false, true, true, false]);
        assert_eq!(matching("lab-1*"), [false, false, true, false, false, false, true, false]);
    }

    #[test]
    fn a_text_that_is_no_pattern_is_refused() {
        for text in ["", "a*b", "*a", "a**", "**"] {
            let expected = format!("{text:?}; expected a name, or a prefix and \"*\" at its end");
            assert_eq!(NamePattern::parse(text).unwrap_err().to_string(), expected);
        }
    }
}
