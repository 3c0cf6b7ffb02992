//! A run of readings: equal ones, or ones beyond a limit.

use crate::alarm::condition::{Hold, Micros, Point};

/// Equal readings in a row that are needed to be stuck. Two may be equal by chance.
const MIN_STUCK_READINGS: usize = 3;

/// The run that the newest reading belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::alarm) struct Run {
    /// The value of the first reading.
    pub(in crate::alarm) value: f64,
    /// The time of the first reading.
    pub(in crate::alarm) since: Micros,
    pub(in crate::alarm) count: usize,
    /// The time of the reading before the first one, if known.
    pub(in crate::alarm) before: Option<Micros>,
}

impl Run {
    pub(in crate::alarm) fn new(point: Point, before: Option<Micros>) -> Self {
        Self { value: point.value, since: point.at, count: 1, before }
    }

    /// Whether the run, which lasts until `at`, is as long as a condition must hold.
    pub(in crate::alarm) fn is_held(&self, at: Micros, hold: Hold) -> bool {
        self.count >= hold.readings || at.saturating_sub(self.since) >= hold.duration
    }

    /// Whether the run, which lasts until `at`, is long enough to be stuck.
    pub(in crate::alarm) fn is_stuck(&self, at: Micros, duration: Micros, readings: usize) -> bool {
        self.count >= readings
            || (self.count >= MIN_STUCK_READINGS && at.saturating_sub(self.since) >= duration)
    }
}
