//! Splits a CSV line into fields.

/// Splits a line at `delimiter`, with quotes as in RFC 4180. `None` if a quote is not closed on the line, so that a
/// stray quote invalidates one row only.
pub(super) fn split(line: &str, delimiter: char) -> Option<Vec<String>> {
    let mut bytes = line.as_bytes();
    let mut reader = csv_core::ReaderBuilder::new().delimiter(delimiter as u8).build();
    let mut out = vec![0; line.len() + 1];
    let mut fields = Vec::new();
    if line.bytes().filter(|&byte| byte == b'"').count() % 2 == 1 {
        return None;
    }
    let mut written = 0;
    loop {
        let (result, read, wrote) = reader.read_field(bytes, &mut out[written..]);
        bytes = &bytes[read..];
        match result {
            // The next call, with empty input, returns the last field.
            csv_core::ReadFieldResult::InputEmpty => written += wrote,
            csv_core::ReadFieldResult::OutputFull | csv_core::ReadFieldResult::End => return Some(fields),
            csv_core::ReadFieldResult::Field { record_end } => {
                let field = &out[..written + wrote];
                fields.push(String::from_utf8_lossy(field).into_owned());
                written = 0;
                if record_end {
                    return Some(fields);
                }
            }
        }
    }
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
