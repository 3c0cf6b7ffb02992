//! What all rows of a recording tell about its columns.

use super::{decimal_signs::Evidence, time_columns::DateEvidence};
use crate::replay::{missing_codes::LowNumbers, number};

/// The content of a column.
#[derive(Debug, Default)]
pub(super) struct ColumnContent {
    /// Cells with something else than a usual text of a missing value.
    pub(super) filled: u64,
    /// Cells with a number.
    pub(super) numbers: u64,
    pub(super) signs: Evidence,
    pub(super) low: LowNumbers,
}

impl ColumnContent {
    /// Whether it is a column of numbers. A number now and then, as in a column of remarks, does not make it one.
    pub(super) fn is_numeric(&self) -> bool {
        self.numbers > 0 && self.numbers * 10 >= self.filled
    }
}

/// Reads all rows once.
pub(super) struct Survey {
    pub(super) columns: Vec<ColumnContent>,
    /// The column with the dates, if their order is open.
    pub(super) dates: Option<(usize, DateEvidence)>,
}

impl Survey {
    /// A survey of this many columns.
    pub(super) fn new(columns: usize, dates: Option<(usize, DateEvidence)>) -> Self {
        let columns = std::iter::repeat_with(ColumnContent::default).take(columns).collect();
        Self { columns, dates }
    }

    /// Takes the next row. One with too many columns is refused when it is read, so that it says nothing.
    pub(super) fn add(&mut self, row: &[String]) {
        if row.iter().skip(self.columns.len()).any(|cell| !cell.trim().is_empty()) {
            return;
        }
        for (index, (column, cell)) in self.columns.iter_mut().zip(row).enumerate() {
            let cell = cell.trim();
            if number::is_missing(cell) {
                continue;
            }
            match &mut self.dates {
                Some((dates, evidence)) if *dates == index => evidence.add(cell),
                _ => {
                    column.filled += 1;
                    if let Some(number) = number::notation(cell) {
                        column.numbers += 1;
                        column.signs.add(cell, number);
                        column.low.add(number);
                    }
                }
            }
        }
    }
}
