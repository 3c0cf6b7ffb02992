//! The readings of a batch, and those that it has changed.

use garenne::sink::FinishedTask;
use garenne_sensors::reading_row::ReadingRow;

/// A reading of a batch: the index of its result, the result, and the reading.
pub type NewReading<'a> = (usize, &'a FinishedTask, &'a ReadingRow);

/// A reading of a batch that was stored, or replaced another one. A repeated reading is none.
#[derive(Clone, Copy, Debug)]
pub struct ChangedReading<'a> {
    /// The index in the batch of the result that has it.
    pub result: usize,
    /// The reading, with its device, metric, time, value and flags.
    pub row: &'a ReadingRow,
}

impl<'a> ChangedReading<'a> {
    /// The change of a reading of a batch.
    pub fn new(&(result, _, row): &NewReading<'a>) -> Self {
        Self { result, row }
    }
}
