//! Parses the numbers of recordings.

/// The number format of a file and its codes of missing values.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NumberFormat {
    /// `2,6` is 2.6.
    pub(super) decimal_comma: bool,
    /// Numbers that mean a missing value, such as -200.
    pub(super) missing_numbers: Vec<f64>,
    /// Texts that mean a missing value, besides the usual ones.
    pub(super) missing_texts: Vec<String>,
}

/// The content of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell {
    /// A number.
    Number(f64),
    /// A missing value: a code or an empty cell.
    Missing,
    /// Other text.
    Text,
}

/// Usual texts of missing values.
const MISSING_TEXTS: &[&str] = &["na", "n/a", "nan", "null", "none", "nil", "-", "--", "?", "missing"];

impl NumberFormat {
    /// Adds the codes of a user. Numbers are compared by value, other codes as text.
    pub(super) fn with_missing<'a>(mut self, codes: impl IntoIterator<Item = &'a str>) -> Self {
        for code in codes {
            match parse(code.trim(), self.decimal_comma).or_else(|| parse(code.trim(), false)) {
                Some(number) => self.missing_numbers.push(number),
                None => self.missing_texts.push(code.trim().to_owned()),
            }
        }
        self
    }

    /// Parses a cell.
    pub(super) fn cell(&self, text: &str) -> Cell {
        let text = text.trim();
        if text.is_empty()
            || MISSING_TEXTS.iter().any(|missing| missing.eq_ignore_ascii_case(text))
            || self.missing_texts.iter().any(|code| code == text)
        {
            return Cell::Missing;
        }
        match parse(text, self.decimal_comma) {
            Some(number) if self.missing_numbers.contains(&number) => Cell::Missing,
            Some(number) => Cell::Number(number),
            None => Cell::Text,
        }
    }
}

/// Parses a finite number. The other separator is allowed between groups of three digits.
pub(super) fn parse(text: &str, decimal_comma: bool) -> Option<f64> {
    let (mark, thousands) = if decimal_comma { (',', '.') } else { ('.', ',') };
    let text = text.trim().replace('\u{2212}', "-");
    let digits = text.trim_start_matches(['+', '-']);
    // Refuses `inf`, `nan` and hexadecimal numbers.
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == mark) {
        return None;
    }
    let (whole, _) = digits.split_once([mark, 'e', 'E']).unwrap_or((digits, ""));
    let is_grouped = || {
        let mut groups = whole.split(thousands);
        let first = groups.next().unwrap_or_default();
        (1..=3).contains(&first.len()) && groups.all(|group| group.len() == 3)
    };
    let plain = match whole.contains(thousands) {
        false => text.replace(mark, "."),
        true if is_grouped() => text.replace(thousands, "").replace(mark, "."),
        // In a file with decimal commas, a point that separates no thousands is a decimal point.
        true if decimal_comma && !digits.contains(mark) => text,
        true => return None,
    };
    plain.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Codes that loggers use for missing values.
const CODES: &[f64] =
    [-99.0, -99.9, -99.99, -200.0, -888.0, -999.0, -999.9, -999.99, -9999.0, -9999.9, -99999.0].as_slice();

/// Detects the code of missing values in these columns: a known code that occurs more than once and is far from all
/// other numbers in each column that has it.
pub(super) fn missing_code(columns: &[Vec<f64>]) -> Option<f64> {
    CODES.iter().copied().find(|&code| {
        let mut occurrences = 0;
        let isolated = columns.iter().filter(|column| column.contains(&code)).all(|column| {
            occurrences += column.iter().filter(|&&number| number == code).count();
            column.iter().all(|&number| number == code || number > code / 2.0)
        });
        isolated && occurrences > 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_decimal_point_or_comma_are_parsed() {
        for (text, comma, number) in [
            ("2,6", true, Some(2.6)),
            ("1.234,5", true, Some(1234.5)),
            ("12.5", true, Some(12.5)),
            ("-0,7578", true, Some(-0.7578)),
            ("1,234.5", false, Some(1234.5)),
            ("2,6", false, None),
            ("1e3", false, Some(1000.0)),
            ("\u{2212}4", false, Some(-4.0)),
            ("+4.5", false, Some(4.5)),
            ("inf", false, None),
            ("0x10", false, None),
            ("18.00.00", false, None),
            ("", false, None),
        ] {
            assert_eq!(parse(text, comma), number, "{text}");
        }
    }

    #[test]
    fn codes_words_and_empty_cells_are_missing_values() {
        let numbers =
            NumberFormat { decimal_comma: true, ..NumberFormat::default() }.with_missing(["-200", "bad"]);
        for text in ["", " ", "-200", "-200,0", "NaN", "n/a", "bad"] {
            assert_eq!(numbers.cell(text), Cell::Missing, "{text}");
        }
        assert_eq!(numbers.cell("-200,5"), Cell::Number(-200.5));
        assert_eq!(numbers.cell("ok"), Cell::Text);
    }

    #[test]
    fn a_code_is_detected_only_if_it_is_far_from_the_values() {
        assert_eq!(missing_code(&[vec![1.0, -200.0, 2.0], vec![600.0, -200.0]]), Some(-200.0));
        assert_eq!(missing_code(&[vec![1.0, -200.0, 2.0]]), None);
        assert_eq!(missing_code(&[vec![-200.0, -200.0, -180.0]]), None);
        assert_eq!(missing_code(&[vec![-12.0, -30.0]]), None);
    }
}
