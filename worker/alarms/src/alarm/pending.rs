//! The state of a rule with `for` after the newest reading of a series.

use super::{
    condition::Micros,
    judge::{Judge, Memory, Run},
};

/// The state of a rule with `for` after the newest reading of a series, while there is no alarm.
///
/// It spares the next judgement all readings that are beyond the limit and have not been for long enough. It holds as
/// long as no reading of the series at or before [`upto`](Self::upto) changes without being judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The time of the newest reading.
    pub upto: Micros,
    /// The readings in a row until then that are beyond the limit; none if the newest is not.
    pub run: Option<PendingRun>,
}

/// Readings in a row that are beyond a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRun {
    /// The time of the first.
    pub since: Micros,
    /// How many readings the run has.
    pub count: usize,
}

impl Pending {
    /// The state of a judge after the newest reading of a series, at `upto`. None if it has an excursion, whose alarm is
    /// stored, or needs no such state.
    pub(super) fn after(judge: &Judge, upto: Micros) -> Option<Self> {
        let run = judge.held_run()?;
        Some(Self { upto, run: run.map(|Run { since, count, .. }| PendingRun { since, count }) })
    }

    /// The state for the judge of the next reading.
    pub(super) fn memory(&self) -> Memory {
        // A rule with `for` compares no value with that of the first reading.
        let run = |PendingRun { since, count }| Run { value: f64::NAN, since, count, before: None };
        Memory::Run(self.run.map(run))
    }
}
