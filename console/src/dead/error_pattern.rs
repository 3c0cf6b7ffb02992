//! Errors that differ only in values, ids and addresses are counted as one.

/// A plain number up to this many digits is kept: it is a status, a line or a column more often than a value.
const KEPT_DIGITS: usize = 3;

/// The error with `…` for each word with a digit, except for short whole numbers. The pattern of a pattern is itself.
pub(super) fn error_pattern(error: &str) -> String {
    let mut pattern = String::with_capacity(error.len());
    let mut word = String::new();
    for character in error.chars() {
        if is_part_of_word(character) {
            word.push(character);
        } else {
            end_word(&mut pattern, &mut word);
            pattern.push(character);
        }
    }
    end_word(&mut pattern, &mut word);
    pattern
}

/// Ids, times, addresses, numbers with sign, fraction or unit.
fn is_part_of_word(character: char) -> bool {
    character.is_alphanumeric() || "-+_.:/@%".contains(character)
}

fn end_word(pattern: &mut String, word: &mut String) {
    let end = word.trim_end_matches(['.', ':', '-', '/']).len();
    let (core, rest) = word.split_at(end);
    let is_short = core.len() <= KEPT_DIGITS && core.bytes().all(|byte| byte.is_ascii_digit());
    let is_value = core.bytes().any(|byte| byte.is_ascii_digit()) && !is_short;
    pattern.push_str(if is_value { "…" } else { core });
    pattern.push_str(rest);
    word.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_ids_are_left_out_and_short_numbers_stay() {
        for (error, pattern) in [
            ("value 21.5 is stored for this time, 24.1 came", "value … is stored for this time, … came"),
            (
                "https://hooks.example.org/alerts answered 503",
                "https://hooks.example.org/alerts answered 503",
            ),
            ("no calibration of hall/rack-7: missing", "no calibration of …: missing"),
            ("expected a number at line 3 column 17", "expected a number at line 3 column 17"),
            ("device \"a-1\" (id 0198c5c2-7d1e) is unknown.", "device \"…\" (id …) is unknown."),
            ("12345 bytes", "… bytes"),
            ("", ""),
        ] {
            assert_eq!(error_pattern(error), pattern);
            assert_eq!(error_pattern(pattern), pattern, "the pattern of a pattern");
        }
    }
}
