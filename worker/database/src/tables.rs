//! The names of the tables.

use derive_more::Display;

/// The common beginning of the names of a fleet's tables.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub struct Tables(String);

impl Tables {
    /// `prefix` in lower case, with `_` for each character that is no letter or digit.
    pub fn new(prefix: &str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        Self(prefix.chars().map(plain).collect())
    }
}
