//! Parses TOML with errors on one line.

use serde::de::DeserializeOwned;

/// Parses TOML.
///
/// # Errors
/// The text is not TOML or does not match `T`: `line N: problem`, without a line break.
pub fn parse_toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        format!("line {line}: {}", error.message().replace('\n', "; "))
    })
}
