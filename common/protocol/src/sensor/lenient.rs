//! Makes JSON readable that has a few bytes or numbers that JSON does not allow.
//!
//! Sensors write `nan`, `-Infinity`, `1e999`, `.5`, `ERR`, single bytes of Latin-1, or a NUL at the end. A parser of JSON
//! refuses the whole text for one of them. Here they are marked, so that only the record or the field that has them is refused.
//! The length of the text does not change, so that no memory is needed.

use std::ops::Range;

use serde::de::IgnoredAny;

/// Stands for a byte that is not allowed in a string. It is a control character: no name may have it.
pub const BAD_BYTE: char = '\u{7f}';

/// The text that stands for a number that is not finite, and for any other bare word that JSON does not have. As JSON it is as
/// long as the shortest one, `nan`. A word of two bytes without white space around becomes an empty text.
pub const NOT_FINITE: &str = "\u{7f}";

/// Words for numbers that are not finite, in lower case and without a sign, as C, C++, Python and JavaScript write them.
const WORDS: [&[u8]; 9] =
    [b"nan", b"inf", b"infinity", b"nan(ind)", b"nan(snan)", b"1.#inf", b"1.#ind", b"1.#qnan", b"1.#snan"];

/// The length of [`NOT_FINITE`] as JSON.
const SHORTEST: usize = 3;

/// Longest number that is looked at.
const LONGEST: usize = 1024;

/// A copy of the text with marks for what JSON does not allow. Words of one or two bytes get room for the whole mark. The copy
/// may still not be JSON.
pub fn repaired(text: &[u8]) -> Vec<u8> {
    let mut copy = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let end = match text[at] {
            b'"' => (end_of_string(text, at) + 1).min(text.len()),
            byte if is_of_word(byte) => end_of_word(text, at),
            _ => at + 1,
        };
        let piece = &text[at..end];
        if piece.len() < SHORTEST
            && is_of_word(piece[0])
            && serde_json::from_slice::<IgnoredAny>(piece).is_err()
        {
            copy.resize(copy.len() + SHORTEST - piece.len(), b' ');
        }
        copy.extend_from_slice(piece);
        at = end;
    }
    repair(&mut copy);
    copy
}

/// The length of a text without NULs at its end, also those between line ends: C programs send the NUL that ends a text.
pub fn end_before_nuls(text: &[u8]) -> usize {
    let is_end = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
    let end = text.iter().rposition(|byte| !is_end(byte)).map_or(0, |last| last + 1);
    if text[end..].contains(&0) { end } else { text.len() }
}

/// Marks what JSON does not allow. The text may still not be JSON.
pub fn repair(text: &mut [u8]) {
    let end = end_before_nuls(text);
    text[end..].fill(b' ');
    let mut at = 0;
    // The last byte that is no white space.
    let mut before = 0;
    while at < text.len() {
        let byte = text[at];
        at = match byte {
            b'"' => {
                let end = end_of_string(text, at);
                mark_bad_bytes(&mut text[at + 1..end]);
                mark_lone_surrogates(&mut text[at + 1..end]);
                if text[at + 1..end] == *NOT_FINITE.as_bytes() {
                    // A string of one bad byte is no number. No name is a space either.
                    text[at + 1] = b' ';
                }
                end + 1
            }
            _ if is_of_word(byte) => {
                let word = at..end_of_word(text, at);
                if is_not_finite(&text[word.clone()]) || is_bad_value(text, word.clone(), before) {
                    mark_word(text, word)
                } else {
                    word.end
                }
            }
            _ => at + 1,
        };
        if !byte.is_ascii_whitespace() {
            before = byte;
        }
    }
}

/// The bytes between the values of JSON.
const STRUCTURE: &[u8] = b",:[]{}";

/// Whether a bare word is in the place of a value and is none.
fn is_bad_value(text: &[u8], word: Range<usize>, before: u8) -> bool {
    let behind = text[word.end..].iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(before, b':' | b'[' | b',')
        && matches!(behind, Some(b',' | b']' | b'}'))
        && serde_json::from_slice::<IgnoredAny>(&text[word]).is_err()
}

/// Replaces a word, with the white space around it. Returns the position behind them.
fn mark_word(text: &mut [u8], word: Range<usize>) -> usize {
    let space = |byte: &&u8| byte.is_ascii_whitespace();
    let start = word.start - text[..word.start].iter().rev().take_while(space).count();
    let end = word.end + text[word.end..].iter().take_while(space).count();
    let mark: &[u8] = match end - start {
        // There is no value of one byte that is no number.
        ..=1 => return end,
        2 => b"\"\"",
        _ => b"\"\x7f\"",
    };
    text[start..end].fill(b' ');
    text[start..start + mark.len()].copy_from_slice(mark);
    end
}

/// Whether a word stands for a number that is not finite: `NaN`, `-inf`, or a number beyond a double.
pub fn is_not_finite(word: &[u8]) -> bool {
    let unsigned = word.strip_prefix(b"-").or_else(|| word.strip_prefix(b"+")).unwrap_or(word);
    if WORDS.iter().any(|known| unsigned.eq_ignore_ascii_case(known)) {
        return true;
    }
    let is_number = unsigned.len() <= LONGEST && unsigned.first().is_some_and(u8::is_ascii_digit);
    let number = str::from_utf8(word).ok().filter(|_| is_number).and_then(|text| text.parse::<f64>().ok());
    number.is_some_and(|number| !number.is_finite())
}

/// The position of the quote that ends the string that begins at `at`, or the end of the text.
pub fn end_of_string(text: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while end < text.len() && text[end] != b'"' {
        end += if text[end] == b'\\' { 2 } else { 1 };
    }
    end.min(text.len())
}

/// The position behind the number or the word that begins at `at`.
pub fn end_of_word(text: &[u8], at: usize) -> usize {
    at + text[at..].iter().take_while(|byte| is_of_word(**byte)).count()
}

/// Whether a byte can be part of a number or a word outside of strings.
pub fn is_of_word(byte: u8) -> bool {
    !byte.is_ascii_whitespace() && byte != b'"' && byte != 0 && !STRUCTURE.contains(&byte)
}

/// Replaces control characters and bytes that are not UTF-8 by [`BAD_BYTE`].
fn mark_bad_bytes(text: &mut [u8]) {
    for control in text.iter_mut().filter(|byte| **byte < b' ') {
        *control = BAD_BYTE as u8;
    }
    mark_not_utf8(text);
}

/// Replaces escapes of a half of a pair of surrogates, such as `\ud800`, by [`BAD_BYTE`]: they stand for no character.
fn mark_lone_surrogates(text: &mut [u8]) {
    let mut at = 0;
    while at < text.len() {
        let Some(unit) = escaped_unit(&text[at..]) else {
            at += if text[at] == b'\\' { 2 } else { 1 };
            continue;
        };
        let is_pair = matches!(unit, 0xd800..=0xdbff)
            && matches!(escaped_unit(&text[at + ESCAPE..]), Some(0xdc00..=0xdfff));
        if is_pair {
            at += 2 * ESCAPE;
        } else {
            if matches!(unit, 0xd800..=0xdfff) {
                text[at..at + ESCAPE].fill(BAD_BYTE as u8);
            }
            at += ESCAPE;
        }
    }
}

/// The length of an escape such as `\u00fc`.
const ESCAPE: usize = 6;

/// The code unit of the escape that `text` begins with.
fn escaped_unit(text: &[u8]) -> Option<u16> {
    let digits = text.get(..ESCAPE)?.strip_prefix(b"\\u")?;
    let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
    str::from_utf8(digits).ok().filter(|_| is_hex).and_then(|digits| u16::from_str_radix(digits, 16).ok())
}

/// Replaces bytes that are not UTF-8 by [`BAD_BYTE`].
pub fn mark_not_utf8(text: &mut [u8]) {
    let bad = BAD_BYTE as u8;
    let mut at = 0;
    while let Err(error) = str::from_utf8(&text[at..]) {
        let start = at + error.valid_up_to();
        at = error.error_len().map_or(text.len(), |bytes| start + bytes);
        text[start..at].fill(bad);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repaired(text: &[u8]) -> String {
        let mut text = text.to_vec();
        let length = text.len();
        repair(&mut text);
        assert_eq!(text.len(), length);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn numbers_that_are_not_finite_are_marked() {
        for word in
            ["nan", "NaN", "-nan", "Infinity", "-Infinity", "+inf", "1e999", "-1E400", "-nan(ind)", "1.#QNAN"]
        {
            let text = repaired(format!("{{\"a\":{word},\"b\":1}}").as_bytes());
            let value: serde_json::Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(value, serde_json::json!({"a": NOT_FINITE, "b": 1}));
        }
        for text in [
            r#"{"a":[1,-2.5e3,true,false,null,"nan \" 1e999 ü"],"b":0.5 , "c" : [ ]}"#,
            "{oops",
            "nonsense",
            "[nano",
            "\"open",
            "{a:1,b:ERR2:3}",
            r#"{"a":x,"b":-}"#,
        ] {
            assert_eq!(repaired(text.as_bytes()), text);
        }
        let long = format!("[{}]", "9".repeat(LONGEST + 1));
        assert_eq!(repaired(long.as_bytes()), long);
    }

    #[test]
    fn bare_words_in_the_place_of_a_value_are_marked() {
        for word in ["ERR", "-.5", "007", "0x1F", "None", "N/A", "12.30.01", "1_000", "\u{b0}C", "+50"] {
            let text = repaired(format!("{{\"a\":{word},\"b\":[1,{word} , {word}]}}").as_bytes());
            let value: serde_json::Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(
                value,
                serde_json::json!({"a": NOT_FINITE, "b": [1, NOT_FINITE, NOT_FINITE]}),
                "{word}"
            );
        }
        for (text, expected) in [
            (r#"{"a":.5,"b": .5,"c": -,"d":+5}"#, r#"{"a":"","b":"@","c":"","d":""}"#),
            ("[\u{fc}\n, 5. ]", "[\"@\", \"@\"]"),
        ] {
            let text: String = repaired(text.as_bytes()).split(' ').collect();
            assert_eq!(text, expected.replace('@', NOT_FINITE).replace(' ', ""));
        }
    }

    #[test]
    fn a_copy_has_room_for_the_marks_of_short_words() {
        let copied = |text: &str| String::from_utf8(super::repaired(text.as_bytes())).unwrap();
        for word in [".5", "5.", "+5", "05", "-", "x", "\u{b0}", "nan", "ERR"] {
            let text =
                copied(&format!("{{\"a\":{word},\"b\":[1,{word}],\"c\": {word} ,\"{word}\":\"{word}\"}}"));
            let value: serde_json::Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let bad = NOT_FINITE;
            assert_eq!(value, serde_json::json!({"a": bad, "b": [1, bad], "c": bad, word: word}), "{text}");
        }
        for text in [r#"{"a":[1,-2,0,10,""," ",[],{}],"b":" .5 "}"#, "", "\"open", "{a:1}"] {
            assert_eq!(copied(text).replace(' ', ""), text.replace(' ', ""));
        }
    }

    #[test]
    fn halves_of_surrogate_pairs_are_marked() {
        let six = "\u{7f}".repeat(6);
        for (text, expected) in [
            (r#"["a\ud800"]"#, format!(r#"["a{six}"]"#)),
            (r#"["\udc00\ud83d\ude00"]"#, format!(r#"["{six}\ud83d\ude00"]"#)),
            (r#"["\ud800\ud83d\ude00x"]"#, format!(r#"["{six}\ud83d\ude00x"]"#)),
            (r#"["\\ud800\u00fc\ud8"]"#, r#"["\\ud800\u00fc\ud8"]"#.to_owned()),
        ] {
            assert_eq!(repaired(text.as_bytes()), expected);
        }
    }

    #[test]
    fn bytes_that_are_not_allowed_in_a_string_are_marked_and_a_nul_at_the_end_is_removed() {
        assert_eq!(repaired(b"{\"B\xf6iler\":\"\xb0\"}\0\0"), "{\"B\u{7f}iler\":\" \"}  ");
        assert_eq!(repaired(b"1\0\r\n\0\n"), "1     ");
        assert_eq!(repaired(b"[\"a\tb\0\",\"\xc3\xbc\xff\"]"), "[\"a\u{7f}b\u{7f}\",\"ü\u{7f}\"]");
    }
}
