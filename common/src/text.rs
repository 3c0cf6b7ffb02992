//! Escapes untrusted text before it is shown.
//!
//! Any AMQP client can choose ids, kinds and headers, and any file can be replayed. Control characters in them could
//! move the cursor, clear the screen or set the title of the operator's terminal; bidirectional and invisible
//! characters could make one text look like another. Everything that is printed or logged passes through one of
//! these functions. Text without such characters is not copied.

use std::{
    borrow::Cow,
    error::Error,
    fmt::{self, Write},
};

/// The text on one line: each hidden character becomes an escape as in Rust source, such as `\u{1b}` or `\n`.
///
/// Backslashes are not escaped, so the original cannot be restored. JSON output has the exact text.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden, |out, hidden| out.extend(hidden.escape_default()))
}

/// As [`printable`] for text of several lines: line feeds stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let hidden = |it: char| it != '\n' && is_hidden(it);
    escaped(text, hidden, |out, hidden| out.extend(hidden.escape_default()))
}

/// Serialized JSON with every hidden character as a JSON escape. The value stays the same: outside of strings, JSON
/// has no hidden characters except line feeds, tabs and carriage returns, which stay.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let hidden = |it: char| !matches!(it, '\n' | '\t' | '\r') && is_hidden(it);
    escaped(json, hidden, |out, hidden| {
        for unit in hidden.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

/// The lines of a text, joined by spaces.
pub fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The error's text, followed by those of its causes.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let all = std::iter::successors(Some(error), |&it| it.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A writer that escapes text as [`printable`] does.
pub struct PrintableWriter<'w>(
    /// Receives the escaped text.
    pub &'w mut dyn Write,
);

impl Write for PrintableWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(&printable(text))
    }
}

/// Whether a terminal interprets the character, shows nothing for it, or reorders others because of it: control
/// characters, line and paragraph separators, bidirectional marks, and Unicode's default-ignorable characters.
/// Variation selectors are not hidden, because emoji contain them.
pub fn is_hidden(it: char) -> bool {
    if it.is_ascii() {
        return it.is_ascii_control();
    }
    it.is_control()
        || matches!(it,
            '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

fn escaped(text: &str, hidden: impl Fn(char) -> bool, escape: impl Fn(&mut String, char)) -> Cow<'_, str> {
    let Some(first) = text.find(&hidden) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for it in text[first..].chars() {
        if hidden(it) { escape(&mut out, it) } else { out.push(it) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Listed independently of the code under test.
    const DANGEROUS: [char; 20] = [
        '\0', '\x07', '\x08', '\t', '\r', '\x1b', '\x7f', '\u{85}', '\u{9b}', '\u{61c}', '\u{200b}',
        '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}',
        '\u{feff}',
    ];

    /// Text in which dangerous characters are as frequent as others.
    fn foreign() -> impl Strategy<Value = String> {
        let one = prop_oneof![prop::sample::select(&DANGEROUS[..]), Just('\n'), any::<char>()];
        prop::collection::vec(one, 0..40).prop_map(|all| all.into_iter().collect())
    }

    fn is_harmless(text: &str) -> bool {
        !text.chars().any(|it| it.is_control() || DANGEROUS.contains(&it))
    }

    #[test]
    fn hidden_characters_are_escaped_as_in_source() {
        assert_eq!(printable("\x1b]0;owned\x07\x1b[2J"), r"\u{1b}]0;owned\u{7}\u{1b}[2J");
        assert_eq!(printable("abc\u{202e}fed"), r"abc\u{202e}fed");
        assert_eq!(printable("one\r\n\ttwo"), r"one\r\n\ttwo");
        assert_eq!(printable_lines("one\r\n\ttwo\n"), "one\\r\n\\ttwo\n");
        assert_eq!(printable("\u{9b}2J\u{7f}\u{2028}\u{feff}"), r"\u{9b}2J\u{7f}\u{2028}\u{feff}");
    }

    #[test]
    fn text_without_hidden_characters_is_not_copied() {
        for plain in
            ["", "reading.process", r"C:\temp [1] {x} 'y' \u{1b}", "Größe 温度 حرارة 🌡\u{fe0f}", "0198c5c2-…"]
        {
            assert!(matches!(printable(plain), Cow::Borrowed(same) if same == plain), "{plain}");
            assert!(matches!(printable_json(plain), Cow::Borrowed(same) if same == plain), "{plain}");
        }
        assert!(matches!(printable_lines("one\ntwo\n"), Cow::Borrowed("one\ntwo\n")));
    }

    proptest! {
        #[test]
        fn output_has_no_dangerous_characters(text in foreign()) {
            let shown = printable(&text);
            prop_assert!(is_harmless(&shown), "{shown:?}");
            prop_assert!(is_harmless(&printable_lines(&text).replace('\n', "")));
            prop_assert_eq!(printable(&shown), shown.as_ref());
        }

        #[test]
        fn harmless_text_is_unchanged(text in "[ -~äß€漢]{0,40}") {
            prop_assert_eq!(printable(&text), text.as_str());
        }

        #[test]
        fn the_writer_escapes_text_in_pieces_like_whole_text(text in foreign(), cut in 0_usize..40) {
            let cut = text.char_indices().nth(cut).map_or(text.len(), |(at, _)| at);
            let mut out = String::new();
            let mut writer = PrintableWriter(&mut out);
            writer.write_str(&text[..cut]).unwrap();
            writer.write_str(&text[cut..]).unwrap();
            prop_assert_eq!(printable(&text), out);
        }

        #[test]
        fn escaped_json_has_the_same_value(text in foreign(), pretty in any::<bool>()) {
            let value = serde_json::json!({ "id": text, text.clone(): [text] });
            let json = if pretty { format!("{value:#}") } else { value.to_string() };
            let shown = printable_json(&json);
            prop_assert!(is_harmless(&shown.replace('\n', "")), "{shown:?}");
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
    }
}
