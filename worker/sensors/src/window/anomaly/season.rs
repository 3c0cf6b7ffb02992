//! The expected value at a time of day, from the days before.

use super::blocks::{BlockLayout, DAY};
use crate::window::order::median;

/// Days of history.
const DAYS: usize = 7;

/// The longest interval between values, in seconds, with which a daily pattern is used.
const MAX_INTERVAL: f64 = 3_700.0;

/// Finds the values of the days before at the same time of day.
pub(super) struct DailySeason {
    /// For each day back, the index of the last value that is not later than the same time on that day.
    cursors: [usize; DAYS],
    /// The interval between values, in seconds.
    interval: f64,
}

impl DailySeason {
    pub(super) fn new(blocks: BlockLayout) -> Self {
        Self { cursors: [0; DAYS], interval: blocks.interval }
    }

    /// The median of the last seven days at the time of day of the value at `index`. None if fewer than two of them
    /// have a value there.
    pub(super) fn expected(&mut self, seconds: &[f64], values: &[f64], index: usize) -> Option<f64> {
        // The largest distance in time from a matching value.
        let tolerance = 0.75 * self.interval;
        if self.interval > MAX_INTERVAL || seconds[index] - seconds[0] < 2.0 * DAY - tolerance {
            return None;
        }
        let mut matches = [0.0; DAYS];
        let mut count = 0;
        for (day, cursor) in self.cursors.iter_mut().enumerate() {
            let target = seconds[index] - (day + 1) as f64 * DAY;
            if target < seconds[0] - tolerance {
                break;
            }
            while *cursor + 1 < index && seconds[*cursor + 1] <= target {
                *cursor += 1;
            }
            let next = (*cursor + 1).min(index - 1);
            let (before, after) = ((seconds[*cursor] - target).abs(), (seconds[next] - target).abs());
            let (distance, nearest) = if before <= after { (before, *cursor) } else { (after, next) };
            if distance <= tolerance {
                matches[count] = values[nearest];
                count += 1;
            }
        }
        let matches = &mut matches[..count];
        matches.sort_unstable_by(f64::total_cmp);
        (count > 1).then(|| median(matches))
    }
}
