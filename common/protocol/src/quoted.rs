//! Texts from outside in messages.

/// A text from outside for a one-line message: quoted, escaped, cut to 60 characters.
#[must_use]
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
