//! The error of texts that are no value of a setting.

/// A text is not a value of a setting. It says what is expected, and does not repeat a text that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

impl ParseError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
