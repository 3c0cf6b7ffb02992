//! Patterns of kinds, devices and certificate names: an exact name, or a prefix and `*`, as in alarm rules.

/// A pattern of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Exact(Box<str>),
    /// Every name with this prefix; every name if it is empty.
    Prefix(Box<str>),
}

impl Pattern {
    /// Longest pattern, in bytes.
    const MAX_BYTES: usize = 255;

    /// # Errors
    /// The text is empty, too long, or has a `*` before its end.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if !(1..=Self::MAX_BYTES).contains(&text.len()) {
            return Err(format!("a pattern has {} bytes; expected 1 to {}", text.len(), Self::MAX_BYTES));
        }
        let (name, is_prefix) = text.strip_suffix('*').map_or((text, false), |prefix| (prefix, true));
        if name.contains('*') {
            return Err(format!("{text:?} contains \"*\" before its end"));
        }
        Ok(if is_prefix { Self::Prefix(name.into()) } else { Self::Exact(name.into()) })
    }

    /// Takes time that is linear in the length of the pattern.
    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *name,
            Self::Prefix(prefix) => name.starts_with(&**prefix),
        }
    }

    /// Whether it matches every name.
    pub(super) fn is_any(&self) -> bool {
        matches!(self, Self::Prefix(prefix) if prefix.is_empty())
    }

    /// Whether every name that it matches starts with `start`.
    pub(super) fn is_within(&self, start: &str) -> bool {
        let (Self::Exact(text) | Self::Prefix(text)) = self;
        text.starts_with(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_an_exact_name_or_a_prefix() {
        let matches = |pattern: &str, name: &str| Pattern::parse(pattern).unwrap().matches(name);
        assert!(matches("boiler-1", "boiler-1") && !matches("boiler-1", "boiler-10"));
        assert!(matches("boiler-*", "boiler-") && matches("boiler-*", "boiler-1/a"));
        assert!(!matches("boiler-*", "boiler") && !matches("boiler-*", "Boiler-1"));
        assert!(matches("*", "") && matches("*", "anything"));
    }

    #[test]
    fn an_invalid_pattern_is_refused() {
        let refused = |text: &str| Pattern::parse(text).unwrap_err();
        assert_eq!(refused(""), "a pattern has 0 bytes; expected 1 to 255");
        assert_eq!(refused("a*b"), "\"a*b\" contains \"*\" before its end");
        assert_eq!(refused("**"), "\"**\" contains \"*\" before its end");
        assert!(refused(&"x".repeat(256)).starts_with("a pattern has 256 bytes"));
    }
}
