//! Detects the codes that loggers write for missing values, such as -999.

use super::number::{Notation, NumberFormat};

/// Usual codes, lowest first.
pub(super) const CODES: [f64; 11] =
    [-99999.0, -9999.9, -9999.0, -999.99, -999.9, -999.0, -888.0, -200.0, -99.99, -99.9, -99.0];

/// Most different numbers that are kept of a column. That is enough: of more, at least 53 are not codes, and lower than
/// those that are dropped.
const KEPT: usize = 64;

/// The lowest numbers of a column: the codes, and what may be too near to them.
#[derive(Debug, Default)]
pub(super) struct LowNumbers {
    /// Each with the number of cells, lowest first.
    kept: Vec<(Notation, u64)>,
    /// All numbers of the column.
    count: u64,
}

impl LowNumbers {
    /// Takes the number of a cell.
    pub(super) fn add(&mut self, number: Notation) {
        self.count += 1;
        if lowest(number) > CODES[CODES.len() - 1] / 2.0 {
            return;
        }
        if let Some((_, count)) = self.kept.iter_mut().find(|(kept, _)| *kept == number) {
            *count += 1;
            return;
        }
        let at = self.kept.partition_point(|(kept, _)| lowest(*kept) < lowest(number));
        self.kept.insert(at, (number, 1));
        self.kept.truncate(KEPT);
    }
}

/// The lowest value that a number may have.
fn lowest(number: Notation) -> f64 {
    match number {
        Notation::Certain { value, .. } => value,
        Notation::Either { decimal, thousands, .. } => decimal.min(thousands),
    }
}

/// The codes down from this one are no usual values, so that they need no other number to be far from.
const UNUSUAL: f64 = -888.0;

/// The codes in these columns: the known ones that are far from all other numbers in each column that has them. A usual
/// value that occurs once needs another number to be far from.
pub(super) fn missing_codes(columns: &[(NumberFormat, &LowNumbers)]) -> Vec<f64> {
    let mut codes = Vec::new();
    for code in CODES {
        let (mut occurrences, mut compared, mut isolated) = (0, false, true);
        for (format, numbers) in columns {
            let kept = || numbers.kept.iter().filter_map(|(number, n)| Some((format.value(*number)?, *n)));
            let own: u64 = kept().filter(|(value, _)| *value == code).map(|(_, count)| count).sum();
            if own == 0 {
                continue;
            }
            occurrences += own;
            let is_code = |value: f64| value == code || codes.contains(&value);
            let coded: u64 = kept().filter(|(value, _)| is_code(*value)).map(|(_, count)| count).sum();
            compared |= numbers.count > coded;
            isolated &= kept().all(|(value, _)| is_code(value) || value > code / 2.0);
        }
        if isolated && (occurrences > 1 || occurrences == 1 && (compared || code <= UNUSUAL)) {
            codes.push(code);
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use crate::replay::number;

    use super::*;

    fn codes(columns: &[&[&str]]) -> Vec<f64> {
        let numbers = |cells: &&[&str]| {
            let mut numbers = LowNumbers::default();
            cells.iter().filter_map(|cell| number::notation(cell)).for_each(|number| numbers.add(number));
            numbers
        };
        let columns: Vec<LowNumbers> = columns.iter().map(numbers).collect();
        let format = NumberFormat::known(number::Sign::Point);
        missing_codes(&columns.iter().map(|column| (format, column)).collect::<Vec<_>>())
    }

    #[test]
    fn a_code_is_detected_only_if_it_is_far_from_the_values() {
        assert_eq!(codes(&[&["1", "-200", "2"], &["600", "-200"]]), [-200.0]);
        assert_eq!(codes(&[&["21.5", "-999"], &["1"]]), [-999.0], "one is a code as several are");
        assert_eq!(codes(&[&["-200", "-200", "-180"]]), [0.0; 0]);
        assert_eq!(codes(&[&["-12", "-30"]]), [0.0; 0]);
        assert_eq!(codes(&[&["1", "-200"], &["-150", "-200"]]), [0.0; 0], "a value of the second column");
        assert_eq!(codes(&[&["-999"], &["1"]]), [-999.0], "the only number of its column, as two of them");
        assert_eq!(codes(&[&["-200"], &["1"]]), [0.0; 0], "-200 may be a value");
        assert_eq!(codes(&[&["-999", "-999"], &["1"]]), [-999.0]);
    }

    #[test]
    fn several_codes_are_detected() {
        assert_eq!(codes(&[&["1", "-999", "-9999", "-99.90"], &["2", "-9999"]]), [-9999.0, -999.0, -99.9]);
    }

    #[test]
    fn the_values_nearest_to_a_code_are_among_those_that_are_kept() {
        let values: Vec<String> = (0..300).map(|value| format!("-{}.5", 300 + value)).collect();
        let mut cells: Vec<&str> = values.iter().map(String::as_str).collect();
        cells.push("-999");
        assert_eq!(codes(&[&cells]), [0.0; 0], "-599.5 is too near");
        let cells = ["-55.123", "-480.250", "-999"];
        assert_eq!(codes(&[&cells]), [-999.0], "-480.250 is not -480250");
    }
}
