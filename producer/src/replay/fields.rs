//! Splits a CSV line into fields.

/// Splits a line at `delimiter`, with quotes as in RFC 4180. `None` if a quote is not closed on the line, so that a
/// stray quote invalidates one row only.
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
