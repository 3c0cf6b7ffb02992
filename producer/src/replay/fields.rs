//! Splits a CSV record into fields.

/// Characters that may be before and after a quoted field.
const DELIMITERS: [u8; 4] = *b",;\t|";

/// Whether a quoted field is open at the end of a line that begins inside of one (`open`) or not. `None` if a quote is
/// neither at the beginning nor at the end of a field.
pub(super) fn open_at_end(line: &[u8], mut open: bool) -> Option<bool> {
    let mut at = 0;
    while let Some(found) = line[at..].iter().position(|&byte| byte == b'"') {
        let quote = at + found;
        let next = line.get(quote + 1);
        at = quote + 1;
        match open {
            // Two quotes are one in the field.
            true if next == Some(&b'"') => at += 1,
            true if next.is_none_or(|next| DELIMITERS.contains(next)) => open = false,
            false if quote == 0 || DELIMITERS.contains(&line[quote - 1]) => open = true,
            _ => return None,
        }
    }
    Some(open)
}

/// Splits a record at `delimiter`, with quotes as in RFC 4180. `None` if a quote is not closed.
pub(super) fn split(line: &str, delimiter: char) -> Option<Vec<String>> {
    if line.bytes().filter(|&byte| byte == b'"').count() % 2 == 1 {
        return None;
    }
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter as u8)
        .has_headers(false)
        .buffer_capacity(line.len())
        .from_reader(line.as_bytes());
    let record = reader.records().next()?.ok()?;
    Some(record.iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_fields_are_unquoted_and_a_stray_quote_is_refused() {
        assert_eq!(split("a;2,6;;", ';').unwrap(), ["a", "2,6", "", ""]);
        assert_eq!(split(r#""a,b",c,"say ""hi""""#, ',').unwrap(), ["a,b", "c", "say \"hi\""]);
        assert_eq!(split("21.5\t\u{b0}C", '\t').unwrap(), ["21.5", "°C"]);
        assert_eq!(split(r#"a,"b,c"#, ','), None);
        assert_eq!(split("one", ',').unwrap(), ["one"]);
    }
}
