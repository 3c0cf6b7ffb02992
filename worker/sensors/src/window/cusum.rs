//! Detects drift: a CUSUM of ranks (A. N. Pettitt, "A non-parametric approach to the change-point problem", 1979).
//!
//! The ranks of the values, less their mean, are summed up in order of time. If the values do not drift, the sums divided
//! by their standard deviation are a Brownian bridge, whatever the distribution of the values is: ranks have no outliers
//! and need no reference part from which to estimate a mean. The largest sum exceeds [`THRESHOLD`] with a probability of
//! 1 %, for every number of values.
//!
//! Values that resemble the one before them (autocorrelation) wander further. Their sums are divided by the standard
//! deviation that an autoregression of first order gives. Its coefficient is estimated from what a straight line or, if
//! that fits clearly better, a step leaves of the ranks, because a drift itself looks like autocorrelation.

use schemars::JsonSchema;
use serde::Serialize;

use super::order::centered_ranks;

/// The level that the largest magnitude of a Brownian bridge exceeds with a probability of 1 % (Kolmogorov).
pub const THRESHOLD: f64 = 1.627_623_611_518_95;

/// By how much the maximum of n steps is lower than that of the bridge, times √n (H. Chernoff, 1965).
const DISCRETE_STEPS: f64 = 0.582_6;

/// The smallest number of values that can be judged.
const MIN_VALUES: usize = 8;

/// The largest coefficient of the autoregression that is allowed for.
const MAX_CORRELATION: f64 = 0.9;

/// A step explains the ranks instead of a line if it leaves less than this part of the line's squared residuals. Its
/// place is chosen to fit, so it always leaves a little less.
const STEP_ADVANTAGE: f64 = 0.8;

/// Parts before a drift that are searched for an earlier one. Each is about half as long if the values drift steadily.
const MAX_EARLIER: usize = 16;

/// Whether and since when the level of the values changes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Drift {
    /// The largest sum towards higher values, in standard deviations. A drift if it is above 1.628 - 0.583/√count.
    pub up: f64,
    /// The largest sum towards lower values, in standard deviations. A drift if it is above the same limit.
    pub down: f64,
    /// The index of the first value of a changed level; null if there is no drift. If the values drift steadily, it is
    /// the earliest index at which the drift is significant. Values that do not drift have one with a probability of at
    /// most 1 %.
    pub since: Option<usize>,
}

/// Judges values in order of time. None with fewer than eight values, or if they do not vary. Fewer than ten values never
/// have a drift: every order of them is too probable.
pub fn drift(values: &[f64]) -> Option<Drift> {
    if values.len() < MIN_VALUES {
        return None;
    }
    let ranks = centered_ranks(values);
    let whole = Change::of(&ranks)?;
    let mut since = None;
    let mut change = Some(whole).filter(Change::is_significant);
    for _ in 0..=MAX_EARLIER {
        let Some(Change { at, .. }) = change else { break };
        since = Some(at);
        change = Change::of(&ranks[..at]).filter(Change::is_significant);
    }
    Some(Drift { up: whole.up, down: whole.down, since })
}

/// The most probable change of level among ranks.
#[derive(Clone, Copy)]
struct Change {
    up: f64,
    down: f64,
    /// The index of the first rank after the change.
    at: usize,
    count: usize,
}

impl Change {
    /// None with fewer than [`MIN_VALUES`] ranks, or if they do not vary.
    fn of(ranks: &[f64]) -> Option<Self> {
        let count = ranks.len();
        let n = count as f64;
        let mean = ranks.iter().sum::<f64>() / n;
        let squares = ranks.iter().map(|rank| (rank - mean).powi(2)).sum::<f64>();
        if count < MIN_VALUES || squares == 0.0 {
            return None;
        }
        let (mut sum, mut lowest, mut highest) = (0.0_f64, 0.0_f64, 0.0_f64);
        let (mut at, mut largest) = (0, 0.0);
        for (rank, next) in ranks[..count - 1].iter().zip(1..) {
            sum += rank - mean;
            (lowest, highest) = (lowest.min(sum), highest.max(sum));
            if sum.abs() > f64::abs(largest) {
                (at, largest) = (next, sum);
            }
        }
        // Before the change the ranks are on the side of the sum, after it on the other one.
        let step =
            |index: usize| if index < at { largest / at as f64 } else { -largest / (count - at) as f64 };
        let middle = (n - 1.0) / 2.0;
        let moment = |(rank, index): (&f64, usize)| (rank - mean) * (index as f64 - middle);
        let slope = 12.0 * ranks.iter().zip(0..).map(moment).sum::<f64>() / (n * (n * n - 1.0));
        let line = |index: usize| slope * (index as f64 - middle);
        let after_step = Residuals::of(ranks.iter().zip(0..).map(|(rank, index)| rank - mean - step(index)));
        let after_line = Residuals::of(ranks.iter().zip(0..).map(|(rank, index)| rank - mean - line(index)));
        let is_step = after_step.squares < STEP_ADVANTAGE * after_line.squares;
        let residuals = if is_step { after_step } else { after_line };
        let deviation = (squares + residuals.excess(n)).sqrt();
        Some(Self { up: -lowest / deviation, down: highest / deviation, at, count })
    }

    fn is_significant(&self) -> bool {
        self.up.max(self.down) > THRESHOLD - DISCRETE_STEPS / (self.count as f64).sqrt()
    }
}

/// The ranks after a line or a step was removed.
struct Residuals {
    /// The sum of their squares.
    squares: f64,
    /// The sum of the products of each with the one before it.
    products: f64,
}

impl Residuals {
    fn of(residuals: impl Iterator<Item = f64>) -> Self {
        let (squares, products, _) =
            residuals.fold((0.0, 0.0, 0.0), |(squares, products, last), residual| {
                (squares + residual * residual, products + residual * last, residual)
            });
        Self { squares, products }
    }

    /// By how much autocorrelation raises the sum of squares that determines how far sums wander.
    fn excess(&self, count: f64) -> f64 {
        if self.squares == 0.0 {
            return 0.0;
        }
        let estimate = self.products / self.squares;
        // Fitting a mean and a slope to the ranks lowers the estimate by this much on average.
        let bias = (2.0 + 4.0 * estimate.clamp(0.0, 1.0)) / count;
        let correlation = (estimate + bias).clamp(0.0, MAX_CORRELATION);
        self.squares * 2.0 * correlation / (1.0 - correlation)
    }
}

#[cfg(test)]
mod tests;
