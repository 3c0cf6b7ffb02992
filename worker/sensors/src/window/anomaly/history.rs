//! Statistics of the last blocks.

use std::collections::VecDeque;

/// Blocks of history against which a signal is measured.
pub(super) const HISTORY_BLOCKS: usize = 28;

/// A ring of numbers from the last blocks, a fixed number from each.
#[derive(Debug)]
pub(super) struct History {
    numbers: VecDeque<f64>,
    capacity: usize,
    /// Reused for the quantiles.
    scratch: Vec<f64>,
}

impl History {
    pub(super) fn new(per_block: usize) -> Self {
        let capacity = per_block * HISTORY_BLOCKS;
        Self { numbers: VecDeque::with_capacity(capacity), capacity, scratch: Vec::with_capacity(capacity) }
    }

    pub(super) fn add(&mut self, number: f64) {
        if self.numbers.len() == self.capacity {
            self.numbers.pop_front();
        }
        self.numbers.push_back(number);
    }

    /// The 5 %, 50 % and 95 % quantiles; none without numbers.
    pub(super) fn quantiles(&mut self) -> Option<[f64; 3]> {
        self.scratch.clear();
        self.scratch.extend(&self.numbers);
        quantiles(&mut self.scratch)
    }
}

/// The 5 %, 50 % and 95 % quantiles, each the nearest number. Reorders `numbers`.
pub(super) fn quantiles(numbers: &mut [f64]) -> Option<[f64; 3]> {
    let last = numbers.len().checked_sub(1)?;
    let [low, middle, high] = [0.05, 0.5, 0.95].map(|p| (p * last as f64).round() as usize);
    // Each selection moves smaller numbers to its left, where the next one searches.
    let largest = *numbers.select_nth_unstable_by(high, f64::total_cmp).1;
    let median = *numbers[..=high].select_nth_unstable_by(middle, f64::total_cmp).1;
    let smallest = *numbers[..=middle].select_nth_unstable_by(low, f64::total_cmp).1;
    Some([smallest, median, largest])
}

/// The standard deviation of a normal signal, estimated from absolute values by their 90 % quantile. Reorders
/// `numbers`.
pub(super) fn deviation(numbers: &mut [f64]) -> Option<f64> {
    let last = numbers.len().checked_sub(1)?;
    let at = (0.9 * last as f64).round() as usize;
    Some(*numbers.select_nth_unstable_by(at, f64::total_cmp).1 / 1.645)
}

/// The standard deviation of normal numbers with these 5 %, 50 % and 95 % quantiles.
pub(super) fn spread([low, _, high]: [f64; 3]) -> f64 {
    (high - low) / 3.29
}
