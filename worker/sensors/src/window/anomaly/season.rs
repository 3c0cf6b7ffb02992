//! What the days before had at this time of day.

use super::{Blocks, DAY};

/// Days looked back.
const DAYS: usize = 7;

/// Where there are fewer values than one an hour, a day has no shape to compare with.
const SLOWEST: f64 = 3_700.0;

pub(super) struct Season {
    /// For each day back, the last value that is not later than that.
    cursors: [usize; DAYS],
    tolerance: f64,
    is_possible: bool,
}

impl Season {
    pub(super) fn new(blocks: Blocks) -> Self {
        Self { cursors: [0; DAYS], tolerance: 0.75 * blocks.pace, is_possible: blocks.pace <= SLOWEST }
    }

    /// The median of what the last seven days had at this time of day; none unless two had any.
    pub(super) fn expected(&mut self, seconds: &[f64], values: &[f64], place: usize) -> Option<f64> {
        if !self.is_possible || seconds[place] - seconds[0] < 2.0 * DAY - self.tolerance {
            return None;
        }
        let mut then = [0.0; DAYS];
        let mut count = 0;
        for (day, cursor) in self.cursors.iter_mut().enumerate() {
            let target = seconds[place] - (day + 1) as f64 * DAY;
            if target < seconds[0] - self.tolerance {
                break;
            }
            while *cursor + 1 < place && seconds[*cursor + 1] <= target {
                *cursor += 1;
            }
            let next = (*cursor + 1).min(place - 1);
            let (before, after) = ((seconds[*cursor] - target).abs(), (seconds[next] - target).abs());
            let (distance, nearest) = if before <= after { (before, *cursor) } else { (after, next) };
            if distance <= self.tolerance {
                // Kept sorted: there are at most seven.
                let at = then[..count].iter().position(|other| *other > values[nearest]).unwrap_or(count);
                then.copy_within(at..count, at + 1);
                then[at] = values[nearest];
                count += 1;
            }
        }
        match count {
            0 | 1 => None,
            odd if odd % 2 == 1 => Some(then[odd / 2]),
            even => Some((then[even / 2 - 1] + then[even / 2]) / 2.0),
        }
    }
}
