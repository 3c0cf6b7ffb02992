//! What remains of a payload when some of its values became readings.

use std::{collections::HashSet, ops::Range};

use garenne_protocol::sensor::lenient::{end_of_string, end_of_word, is_of_word};

/// The payload with `null` in place of the values at these positions, which are those of the document. A payload that is
/// no object or array remains as it is.
pub(crate) fn remainder(payload: &[u8], taken: &[usize]) -> Vec<u8> {
    let begins = payload[after_mark(payload)..].trim_ascii_start().first();
    if !matches!(begins, Some(b'{' | b'[')) {
        return payload.to_vec();
    }
    let taken: HashSet<usize> = taken.iter().copied().collect();
    let mut rest = Vec::with_capacity(payload.len());
    let mut kept = 0;
    for (position, span) in scalars(payload) {
        if taken.contains(&position) {
            rest.extend_from_slice(&payload[kept..span.start]);
            rest.extend_from_slice(b"null");
            kept = span.end;
        }
    }
    rest.extend_from_slice(&payload[kept..]);
    rest
}

/// The position behind a byte-order mark.
fn after_mark(text: &[u8]) -> usize {
    if text.starts_with("\u{feff}".as_bytes()) { '\u{feff}'.len_utf8() } else { 0 }
}

/// The numbers, words and strings of a JSON text that are values, each with its position among all values.
fn scalars(text: &[u8]) -> Vec<(usize, Range<usize>)> {
    let (mut scalars, mut position, mut at) = (Vec::new(), 0, after_mark(text));
    while at < text.len() {
        let start = at;
        at = match text[at] {
            b'{' | b'[' => {
                position += 1;
                at + 1
            }
            b'"' => (end_of_string(text, at) + 1).min(text.len()),
            byte if is_of_word(byte) => end_of_word(text, at),
            _ => at + 1,
        };
        let is_name = text[at..].trim_ascii_start().first() == Some(&b':');
        if (text[start] == b'"' && !is_name) || is_of_word(text[start]) {
            scalars.push((position, start..at));
            position += 1;
        }
    }
    scalars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_values_are_null_and_all_other_bytes_remain() {
        let marked = "\u{feff}{\"a\":N/A,\"b\":1}";
        assert_eq!(remainder(marked.as_bytes(), &[2]), marked.replace('1', "null").as_bytes());
        let payload = b" {\"a\" : -1.5e3,\"b\":[1,{\"c\":\"x\\\"\"},nan],\"d\":\"\xb0\",\"e\":true}";
        // The positions: 0 the object, 1 a, 2 b, 3 1, 4 the object, 5 c, 6 nan, 7 d, 8 e.
        let rest = remainder(payload, &[1, 3, 5, 8]);
        assert_eq!(rest, b" {\"a\" : null,\"b\":[null,{\"c\":null},nan],\"d\":\"\xb0\",\"e\":null}");
        assert_eq!(remainder(payload, &[]), payload);
        assert_eq!(remainder(b"21.5", &[0]), b"21.5");
    }
}
