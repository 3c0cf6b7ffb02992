//! Parses the numbers of recordings.

/// A decimal sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sign {
    /// `2.6`
    Point,
    /// `2,6`
    Comma,
}

impl Sign {
    /// The other sign, which may separate thousands.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Point => Self::Comma,
            Self::Comma => Self::Point,
        }
    }

    fn character(self) -> char {
        match self {
            Self::Point => '.',
            Self::Comma => ',',
        }
    }
}

/// Evidence of the notation of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Notation {
    /// It has one value.
    Certain {
        value: f64,
        /// The decimal sign that it proves: `2,6` proves a comma, and so does `1.234.567`.
        sign: Option<Sign>,
        /// Whether the other sign separates thousands.
        grouped: bool,
    },
    /// One sign with three digits after it, such as `1.013`.
    Either {
        sign: Sign,
        /// The value if it is the decimal sign: 1.013.
        decimal: f64,
        /// The value if it separates thousands: 1013.
        thousands: f64,
    },
}

/// Characters that separate thousands and are no decimal sign.
const SPACES: [char; 6] = [' ', '\u{a0}', '\u{2009}', '\u{202f}', '\'', '\u{2019}'];

/// Reads a finite number. `None` for other text.
pub(super) fn notation(text: &str) -> Option<Notation> {
    let text = text.trim();
    if !text.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let text = text.replace('\u{2212}', "-");
    let (minus, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    let (mantissa, exponent) = digits.split_at(digits.find(['e', 'E']).unwrap_or(digits.len()));
    let (whole, fraction) = mantissa.split_at(mantissa.find(['.', ',']).unwrap_or(mantissa.len()));
    let spaced = whole.contains(SPACES);
    if spaced && !is_grouped(whole, SPACES.into_iter().find(|space| whole.contains(*space))?) {
        return None;
    }
    let mantissa = format!("{}{fraction}", whole.replace(SPACES, ""));
    // Refuses `inf`, `nan` and hexadecimal numbers.
    if mantissa.contains(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ',')) {
        return None;
    }
    let value = |plain: &str| {
        let number: Option<f64> = format!("{minus}{plain}{exponent}").parse().ok();
        number.filter(|number| number.is_finite())
    };
    let certain = |plain: &str, sign: Option<Sign>, grouped: bool| {
        Some(Notation::Certain { value: value(plain)?, sign, grouped })
    };
    let first = if fraction.starts_with(',') { Sign::Comma } else { Sign::Point };
    let (mark, other) = (first.character(), first.other().character());
    match (mantissa.matches(mark).count(), mantissa.matches(other).count()) {
        (0, _) => certain(&mantissa, None, false),
        (1, 0) => {
            let (whole, after) = mantissa.split_once(mark)?;
            let decimal = format!("{whole}.{after}");
            let both = after.len() == 3 && is_grouped(&mantissa, mark) && !whole.starts_with('0');
            if both && !spaced && exponent.is_empty() {
                let thousands = value(&format!("{whole}{after}"))?;
                return Some(Notation::Either { sign: first, decimal: value(&decimal)?, thousands });
            }
            certain(&decimal, Some(first), false)
        }
        (_, 0) if is_grouped(&mantissa, mark) && !spaced => {
            certain(&mantissa.replace(mark, ""), Some(first.other()), true)
        }
        (_, 1) => {
            let (whole, after) = mantissa.split_once(other)?;
            let grouped = is_grouped(whole, mark) && !after.contains(mark) && !spaced;
            let plain = grouped.then(|| format!("{}.{after}", whole.replace(mark, "")))?;
            certain(&plain, Some(first.other()), true)
        }
        _ => None,
    }
}

/// Whether `separator` divides the digits into groups of three.
fn is_grouped(digits: &str, separator: char) -> bool {
    let mut groups = digits.split(separator);
    let first = groups.next().unwrap_or_default();
    (1..=3).contains(&first.len()) && groups.all(|group| group.len() == 3)
}

/// Whether a number with an exponent has fewer digits than a time in seconds since 1970: a spreadsheet has shortened it,
/// as `1.70963E+12`.
pub(super) fn is_shortened(text: &str) -> bool {
    let mantissa = text.find(['e', 'E']).map(|at| &text[..at]);
    mantissa.is_some_and(|mantissa| mantissa.bytes().filter(u8::is_ascii_digit).count() < 10)
}

/// Reads a number in which point and comma are both decimal signs, such as the seconds of a time.
pub(super) fn decimal(text: &str) -> Option<f64> {
    match notation(text)? {
        Notation::Certain { value, .. } => Some(value),
        Notation::Either { decimal, .. } => Some(decimal),
    }
}

/// How the numbers of a column are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NumberFormat {
    /// The decimal sign of numbers such as `1.013`. `None`: they are ambiguous.
    pub(super) sign: Option<Sign>,
    /// Whether the other sign separates thousands. If not, `1,013` beside `2.6` is ambiguous.
    pub(super) grouped: bool,
}

impl NumberFormat {
    /// A format whose decimal sign is known.
    pub(super) fn known(sign: Sign) -> Self {
        Self { sign: Some(sign), grouped: true }
    }

    /// The value of a number. `None` if it is ambiguous.
    pub(super) fn value(self, notation: Notation) -> Option<f64> {
        match notation {
            Notation::Certain { value, .. } => Some(value),
            Notation::Either { sign, decimal, .. } if self.sign == Some(sign) => Some(decimal),
            Notation::Either { sign, thousands, .. } => {
                (self.sign == Some(sign.other()) && self.grouped).then_some(thousands)
            }
        }
    }
}

/// The content of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell {
    /// A number.
    Number(f64),
    /// A missing value: a code or an empty cell.
    Missing,
    /// A number with two possible values.
    Ambiguous { decimal: f64, thousands: f64 },
    /// Other text.
    Text,
}

/// Usual texts of missing values.
const MISSING_TEXTS: &[&str] = &[
    "na", "n/a", "#n/a", "#nv", "n.a.", "k.a.", "nan", "null", "none", "nil", "-", "--", "---", "?",
    "missing",
];

/// Whether a cell is empty or a usual text of a missing value.
pub(super) fn is_missing(text: &str) -> bool {
    text.is_empty() || MISSING_TEXTS.iter().any(|missing| missing.eq_ignore_ascii_case(text))
}

/// The codes of missing values.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MissingCodes {
    /// Numbers, such as -200.
    pub(super) numbers: Vec<f64>,
    /// Texts besides the usual ones.
    texts: Vec<String>,
}

impl MissingCodes {
    /// The codes of a user. Numbers are compared by value, other codes as text.
    pub(super) fn of<'a>(codes: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all = Self::default();
        for code in codes {
            match decimal(code) {
                Some(number) => all.numbers.push(number),
                None => all.texts.push(code.trim().to_owned()),
            }
        }
        all
    }

    /// These numbers.
    pub(super) fn of_numbers(numbers: Vec<f64>) -> Self {
        Self { numbers, texts: Vec::new() }
    }

    /// The codes as a user gives them.
    pub(super) fn shown(&self) -> Vec<String> {
        let numbers = self.numbers.iter().map(ToString::to_string);
        let codes: Vec<String> = numbers.chain(self.texts.iter().cloned()).collect();
        if codes.is_empty() { vec!["none".to_owned()] } else { codes }
    }

    /// Parses a cell of a column with this format.
    pub(super) fn cell(&self, text: &str, format: NumberFormat) -> Cell {
        let text = text.trim();
        if is_missing(text) || self.texts.iter().any(|code| code == text) {
            return Cell::Missing;
        }
        let Some(notation) = notation(text) else { return Cell::Text };
        match (format.value(notation), notation) {
            (Some(number), _) if self.numbers.contains(&number) => Cell::Missing,
            (Some(number), _) => Cell::Number(number),
            (None, Notation::Either { decimal, thousands, .. }) => Cell::Ambiguous { decimal, thousands },
            (None, Notation::Certain { .. }) => Cell::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(format: NumberFormat, text: &str) -> Option<f64> {
        format.value(notation(text)?)
    }

    const POINT: NumberFormat = NumberFormat { sign: Some(Sign::Point), grouped: false };
    const COMMA: NumberFormat = NumberFormat { sign: Some(Sign::Comma), grouped: false };

    #[test]
    fn numbers_with_decimal_point_or_comma_are_parsed() {
        for (text, number) in [
            ("2,6", Some(2.6)),
            ("12.5", Some(12.5)),
            ("1.234,5", Some(1234.5)),
            ("1,234.5", Some(1234.5)),
            ("1.234.567", Some(1_234_567.0)),
            ("1,234,567.25", Some(1_234_567.25)),
            ("1 234,5", Some(1234.5)),
            ("12\u{a0}345\u{202f}678", None),
            ("12\u{202f}345", Some(12345.0)),
            ("1'234.567", Some(1234.567)),
            ("-0,7578", Some(-0.7578)),
            ("0.757", Some(0.757)),
            ("1013.250", Some(1013.25)),
            ("1e3", Some(1000.0)),
            ("1.013e3", Some(1013.0)),
            ("\u{2212}4", Some(-4.0)),
            ("+4.5", Some(4.5)),
            (",5", Some(0.5)),
            ("inf", None),
            ("0x10", None),
            ("18.00.00", None),
            ("1,23,456.5", None),
            ("1 2", None),
            ("--1", None),
            (".", None),
            ("", None),
        ] {
            for format in [POINT, COMMA, NumberFormat::default()] {
                assert_eq!(parse(format, text), number, "{text}");
            }
        }
    }

    #[test]
    fn one_sign_with_three_digits_after_it_has_two_values() {
        let grouped = |format: NumberFormat| NumberFormat { grouped: true, ..format };
        for (text, format, number) in [
            ("1.013", POINT, Some(1.013)),
            ("1,013", COMMA, Some(1.013)),
            ("1.013", COMMA, None),
            ("1,013", POINT, None),
            ("-1.013", grouped(COMMA), Some(-1013.0)),
            ("1,013", grouped(POINT), Some(1013.0)),
            ("1.013", grouped(POINT), Some(1.013)),
            ("1.013", NumberFormat::default(), None),
        ] {
            assert_eq!(parse(format, text), number, "{text} {format:?}");
        }
        let ambiguous = MissingCodes::default().cell("1.013", COMMA);
        assert_eq!(ambiguous, Cell::Ambiguous { decimal: 1.013, thousands: 1013.0 });
        assert_eq!(decimal("12,345"), Some(12.345));
    }

    #[test]
    fn codes_words_and_empty_cells_are_missing_values() {
        let codes = MissingCodes::of(["-200", "bad"]);
        for text in ["", " ", "-200", "-200,0", "NaN", "n/a", "#NV", "bad"] {
            assert_eq!(codes.cell(text, COMMA), Cell::Missing, "{text}");
        }
        assert_eq!(codes.cell("-200,5", COMMA), Cell::Number(-200.5));
        assert_eq!(codes.cell("ok", COMMA), Cell::Text);
    }
}
