//! Texts and numbers from outside in messages.

/// A text from outside for a one-line message: quoted, escaped, cut to 60 characters.
#[must_use]
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// A number from outside for a one-line message. Very large and very small numbers have an exponent; `{}` writes up to
/// 325 characters.
#[must_use]
pub fn shown_number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || !value.is_finite() || (1e-7..1e21).contains(&size) {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (-0.25, "-0.25"),
            (1_763_600_000_000.0, "1763600000000"),
            (5.684_831_257_391_626e307, "5.684831257391626e307"),
            (-f64::MAX, "-1.7976931348623157e308"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
            (f64::INFINITY, "inf"),
        ];
        for (value, text) in cases {
            assert_eq!(shown_number(value), text);
        }
    }
}
