//! The expected value at a time of day, from the days before.

use super::{BlockLayout, DAY};

/// Days of history.
const DAYS: usize = 7;

/// The longest interval between values, in seconds, with which a daily pattern is used.
const MAX_INTERVAL: f64 = 3_700.0;

/// Finds the values of the days before at the same time of day.
pub(super) struct DailySeason {
    /// For each day back, the index of the last value that is not later than the same time on that day.
    cursors: [usize; DAYS],
    /// The largest distance in time from a matching value, in seconds.
    tolerance: f64,
    is_enabled: bool,
}

impl DailySeason {
    pub(super) fn new(blocks: BlockLayout) -> Self {
        Self {
            cursors: [0; DAYS],
            tolerance: 0.75 * blocks.interval,
            is_enabled: blocks.interval <= MAX_INTERVAL,
        }
    }

    /// The median of the last seven days at the time of day of the value at `index`. None if fewer than two of them
    /// have a value there.
    pub(super) fn expected(&mut self, seconds: &[f64], values: &[f64], index: usize) -> Option<f64> {
        if !self.is_enabled || seconds[index] - seconds[0] < 2.0 * DAY - self.tolerance {
            return None;
        }
        let mut matches = [0.0; DAYS];
        let mut count = 0;
        for (day, cursor) in self.cursors.iter_mut().enumerate() {
            let target = seconds[index] - (day + 1) as f64 * DAY;
            if target < seconds[0] - self.tolerance {
                break;
            }
            while *cursor + 1 < index && seconds[*cursor + 1] <= target {
                *cursor += 1;
            }
            let next = (*cursor + 1).min(index - 1);
            let (before, after) = ((seconds[*cursor] - target).abs(), (seconds[next] - target).abs());
            let (distance, nearest) = if before <= after { (before, *cursor) } else { (after, next) };
            if distance <= self.tolerance {
                // Insertion sort of at most seven values.
                let at = matches[..count].iter().position(|other| *other > values[nearest]).unwrap_or(count);
                matches.copy_within(at..count, at + 1);
                matches[at] = values[nearest];
                count += 1;
            }
        }
        match count {
            0 | 1 => None,
            odd if odd % 2 == 1 => Some(matches[odd / 2]),
            even => Some((matches[even / 2 - 1] + matches[even / 2]) / 2.0),
        }
    }
}
