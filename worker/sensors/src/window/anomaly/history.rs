//! What the last blocks were like.

use std::collections::VecDeque;

/// Blocks that a signal is measured against.
pub(super) const BLOCKS: usize = 28;

/// Numbers of the last blocks, so many from each.
#[derive(Debug)]
pub(super) struct History {
    kept: VecDeque<f64>,
    most: usize,
    work: Vec<f64>,
}

impl History {
    pub(super) fn new(per_block: usize) -> Self {
        let most = per_block * BLOCKS;
        Self { kept: VecDeque::with_capacity(most), most, work: Vec::with_capacity(most) }
    }

    pub(super) fn add(&mut self, number: f64) {
        if self.kept.len() == self.most {
            self.kept.pop_front();
        }
        self.kept.push_back(number);
    }

    /// Their 5 %, 50 % and 95 % quantiles.
    pub(super) fn quantiles(&mut self) -> Option<[f64; 3]> {
        self.work.clear();
        self.work.extend(&self.kept);
        quantiles(&mut self.work)
    }
}

/// The 5 %, 50 % and 95 % quantiles, to the nearest number; reorders.
pub(super) fn quantiles(numbers: &mut [f64]) -> Option<[f64; 3]> {
    let last = numbers.len().checked_sub(1)?;
    let [low, half, most] = [0.05, 0.5, 0.95].map(|p| (p * last as f64).round() as usize);
    // Each selection leaves what is smaller on its left, where the next one goes on.
    let high = *numbers.select_nth_unstable_by(most, f64::total_cmp).1;
    let median = *numbers[..=most].select_nth_unstable_by(half, f64::total_cmp).1;
    let low = *numbers[..=half].select_nth_unstable_by(low, f64::total_cmp).1;
    Some([low, median, high])
}

/// The 90 % quantile, in deviations of a normal signal's absolute value; reorders.
pub(super) fn deviation(numbers: &mut [f64]) -> Option<f64> {
    let last = numbers.len().checked_sub(1)?;
    let at = (0.9 * last as f64).round() as usize;
    Some(*numbers.select_nth_unstable_by(at, f64::total_cmp).1 / 1.645)
}

/// The deviation of normal numbers that have these 5 % and 95 % quantiles.
pub(super) fn spread([low, _, high]: [f64; 3]) -> f64 {
    (high - low) / 3.29
}
