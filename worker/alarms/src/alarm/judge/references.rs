//! The earlier readings that a rate of change is measured from.

use crate::alarm::condition::{Micros, Point};

/// Steps of time in `per`.
const STEPS: Micros = 100;

/// Finds the reading that each reading is compared with.
///
/// Time is divided into steps of a hundredth of `per`, counted from the epoch. A reading is compared with the newest
/// one before the previous step, which is at least one step older: the noise of two closer readings would give an
/// arbitrarily high rate. Three readings are enough state, whatever the number of readings within a step.
#[derive(Clone, Copy, Debug)]
pub(in crate::alarm) struct References {
    width: Micros,
    /// The current step.
    step: Micros,
    newest: Option<Point>,
    /// The newest reading before the current step.
    before_step: Option<Point>,
    /// The newest reading before the previous step: the reference of readings in the current step.
    before_previous: Option<Point>,
}

impl References {
    pub(super) fn new(per: Micros) -> Self {
        let width = (per / STEPS).max(1);
        Self { width, step: Micros::MIN, newest: None, before_step: None, before_previous: None }
    }

    /// The times that [`restored`](Self::restored) needs the newest earlier reading of.
    pub(in crate::alarm) fn cuts(per: Micros, at: Micros) -> [Micros; 3] {
        let width = Self::new(per).width;
        let begin = at.div_euclid(width).saturating_mul(width);
        [at, begin, begin.saturating_sub(width)]
    }

    /// The references of the first reading at or after `at`, from the newest reading before each of the
    /// [`cuts`](Self::cuts).
    pub(in crate::alarm) fn restored(per: Micros, at: Micros, newest_before: [Option<Point>; 3]) -> Self {
        let [newest, before_step, before_previous] = newest_before;
        let new = Self::new(per);
        Self { step: at.div_euclid(new.width), newest, before_step, before_previous, ..new }
    }

    /// The reference of the next reading.
    pub(super) fn advance(&mut self, point: Point) -> Option<Point> {
        let step = point.at.div_euclid(self.width);
        if step != self.step {
            let is_next = self.step.checked_add(1) == Some(step);
            self.before_previous = if is_next { self.before_step } else { self.newest };
            self.before_step = self.newest;
            self.step = step;
        }
        self.newest = Some(point);
        self.before_previous
    }

    /// Whether a reading that changed at this time is no reference of any further reading, before or after the
    /// change.
    pub(super) fn are_after(&self, changed: Micros) -> bool {
        self.before_previous.is_some_and(|oldest| changed < oldest.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_the_newest_reading_before_the_previous_step() {
        let mut references = References::new(1000);
        let mut reference =
            |at| references.advance(Point { at, value: 0.0, start: None, zero: None }).map(|point| point.at);
        let times = [1, 9, 10, 19, 20, 29, 30, 100, 101, 119, 120];
        let expected =
            [None, None, None, None, Some(9), Some(9), Some(19), Some(30), Some(30), Some(30), Some(101)];
        assert_eq!(times.map(&mut reference), expected);
    }

    #[test]
    fn restored_references_are_those_of_all_readings() {
        let points: Vec<_> = [1, 9, 10, 19, 25, 38, 41, 77, 78, 130, 131, 140]
            .map(|at| Point { at, value: 0.0, start: None, zero: None })
            .into();
        for start in 0..150 {
            let newest = |cut| points.iter().rfind(|point| point.at < cut).copied();
            let mut restored = References::restored(1000, start, References::cuts(1000, start).map(newest));
            let mut whole = References::new(1000);
            for point in &points {
                let reference = whole.advance(*point);
                if point.at >= start {
                    assert_eq!(restored.advance(*point), reference, "from {start}, at {}", point.at);
                }
            }
        }
    }
}
