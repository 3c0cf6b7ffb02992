//! TOML with errors of one line.

use serde::de::DeserializeOwned;

/// Reads TOML.
///
/// # Errors
/// Not TOML, or not what is wanted: `line N: what is wrong`, without a line break.
pub fn parse_toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        format!("line {line}: {}", error.message().replace('\n', "; "))
    })
}
