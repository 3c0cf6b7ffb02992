//! The readings that a batch has changed.

use garenne::handler::ReadingRow;

use crate::readings::NewReading;

/// A reading of a batch that was stored, or replaced another one. A repeated reading is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangedReading<'a> {
    /// The index in the batch of the result that has it.
    pub(super) result: usize,
    /// The reading, with its device, metric, time, value and flags.
    pub(super) row: &'a ReadingRow,
}

impl<'a> ChangedReading<'a> {
    pub(super) fn new(&(result, _, row): &NewReading<'a>) -> Self {
        Self { result, row }
    }
}
