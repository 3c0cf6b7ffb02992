//! Statistics of the last blocks.

use std::collections::VecDeque;

/// Blocks of history against which a signal is measured.
const HISTORY_BLOCKS: usize = 28;

/// The numbers of the last blocks, a fixed number from each.
#[derive(Debug, Default)]
pub(super) struct History<const PER_BLOCK: usize = 1>(VecDeque<f64>);

impl<const PER_BLOCK: usize> History<PER_BLOCK> {
    pub(super) fn add(&mut self, number: impl Into<Option<f64>>) {
        self.0.extend(number.into());
        if self.0.len() > PER_BLOCK * HISTORY_BLOCKS {
            self.0.pop_front();
        }
    }

    /// The 5 %, 50 % and 95 % quantiles; none without numbers.
    pub(super) fn quantiles(&self) -> Option<[f64; 3]> {
        quantiles(self.0.iter().copied().collect())
    }

    pub(super) fn median(&self) -> Option<f64> {
        self.quantiles().map(|[_, median, _]| median)
    }
}

/// The 5 %, 50 % and 95 % quantiles, each the nearest number.
pub(super) fn quantiles(numbers: Vec<f64>) -> Option<[f64; 3]> {
    nearest(numbers, [0.05, 0.5, 0.95])
}

/// The standard deviation of a normal signal, estimated from absolute values by their 90 % quantile.
pub(super) fn deviation(numbers: Vec<f64>) -> Option<f64> {
    nearest(numbers, [0.9]).map(|[quantile]| quantile / 1.645)
}

/// The standard deviation of normal numbers with these 5 %, 50 % and 95 % quantiles.
pub(super) fn spread([low, _, high]: [f64; 3]) -> f64 {
    (high - low) / 3.29
}

/// The numbers nearest to these quantiles; none without numbers.
fn nearest<const N: usize>(mut numbers: Vec<f64>, quantiles: [f64; N]) -> Option<[f64; N]> {
    let last = numbers.len().checked_sub(1)?;
    numbers.sort_unstable_by(f64::total_cmp);
    Some(quantiles.map(|p| numbers[(p * last as f64).round() as usize]))
}
