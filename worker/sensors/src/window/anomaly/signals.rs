//! The signals, each in standard deviations of its own past.

use std::{array, mem};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    blocks::BlockLayout,
    history::{History, deviation, quantiles, spread},
    season::DailySeason,
};

/// The property of the values that is anomalous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the module's table defines them")]
pub enum Signal {
    Level,
    Trend,
    Jump,
    Spread,
    Daily,
    DailyTrend,
    Stuck,
}

impl Signal {
    /// All signals, in the order of `Scores`.
    pub const ALL: [Self; COUNT] =
        [Self::Level, Self::Trend, Self::Jump, Self::Spread, Self::Daily, Self::DailyTrend, Self::Stuck];

    /// The lower bound of the threshold: standard deviations, or repetitions for `stuck`.
    pub(super) const fn floor(self) -> f64 {
        match self {
            Self::Level | Self::Trend => 3.5,
            Self::Spread | Self::Daily | Self::DailyTrend => 4.0,
            Self::Jump => 5.0,
            Self::Stuck => 8.0,
        }
    }
}

/// The number of signals.
pub(super) const COUNT: usize = 7;

/// The signals at one value, in the order of [`Signal::ALL`].
pub(super) type Scores = [f64; COUNT];

/// Samples that a block adds to the histories of slow signals.
const SAMPLES_PER_BLOCK: usize = 4;

/// Values are clamped to this, in units of the first block's spread.
const MAX_NORMALIZED: f64 = 1e12;

/// Centre and scale of each signal, in the order of [`Signal::ALL`].
type Reference = [(f64, f64); COUNT];

/// Computes the signals, value by value.
pub(super) struct Signals<'a> {
    blocks: BlockLayout,
    seconds: &'a [f64],
    /// The values relative to the median of the first block, in units of its spread.
    values: Vec<f64>,
    season: DailySeason,
    /// Updated at the end of blocks.
    reference: Option<Reference>,

    /// The weights of a new value in the exponential means over half a block and over a twelfth.
    weights: (f64, f64),
    smooth: f64,
    residual_smooth: f64,
    /// How often the last value has been repeated.
    repeated: usize,
    /// Ring of the absolute changes of the last quarter block, and their sum.
    changes: Vec<f64>,
    changes_sum: f64,

    /// The absolute residuals of the current block, and their smoothed values.
    block_residuals: Vec<f64>,
    block_residual_smooths: Vec<f64>,
    histories: Histories,
}

/// The numbers of the last blocks from which centres and scales are computed.
#[derive(Default)]
struct Histories {
    medians: History,
    widths: History,
    jumps: History,
    smooths: History<SAMPLES_PER_BLOCK>,
    spreads: History<SAMPLES_PER_BLOCK>,
    residuals: History,
    residual_smooths: History,
}

impl<'a> Signals<'a> {
    pub(super) fn new(blocks: BlockLayout, seconds: &'a [f64], values: &[f64]) -> Self {
        let values = normalized(values, blocks.length);
        Self {
            season: DailySeason::new(blocks),
            reference: None,
            weights: (smoothing(blocks.length as f64 / 2.0), smoothing(blocks.length as f64 / 12.0)),
            smooth: values.first().copied().unwrap_or_default(),
            residual_smooth: 0.0,
            repeated: 0,
            changes: vec![0.0; (blocks.length / 4).max(8)],
            changes_sum: 0.0,
            block_residuals: Vec::new(),
            block_residual_smooths: Vec::new(),
            histories: Histories::default(),
            blocks,
            seconds,
            values,
        }
    }

    /// The signals at the value at `index`. Must be called for each value in order.
    pub(super) fn next(&mut self, index: usize) -> Scores {
        let value = self.values[index];
        let jump = self.jump(index);
        self.repeated = if jump == 0.0 { self.repeated + 1 } else { 1 };
        self.smooth += self.weights.0 * (value - self.smooth);
        let variation = self.variation(index, jump);
        let residual =
            self.season.expected(self.seconds, &self.values, index).map(|expected| value - expected);
        if let Some(residual) = residual {
            self.residual_smooth += self.weights.1 * (residual - self.residual_smooth);
            self.block_residuals.push(residual.abs());
            self.block_residual_smooths.push(self.residual_smooth.abs());
        }
        if (index + 1).is_multiple_of(self.blocks.length / SAMPLES_PER_BLOCK) {
            self.histories.smooths.add(self.smooth);
            self.histories.spreads.add(variation);
        }
        let Some(reference) = self.reference else { return [0.0; COUNT] };
        let measured = [
            value,
            self.smooth,
            jump,
            variation,
            residual.unwrap_or_default(),
            residual.map_or(0.0, |_| self.residual_smooth),
            self.repeated.min(self.blocks.length) as f64,
        ];
        array::from_fn(|signal| {
            let (center, scale) = reference[signal];
            (measured[signal] - center).abs() / scale
        })
    }

    /// The absolute change from the value before.
    fn jump(&self, index: usize) -> f64 {
        (self.values[index] - self.values[index.saturating_sub(1)]).abs()
    }

    /// The logarithm of the mean absolute change over the last quarter block.
    fn variation(&mut self, index: usize, jump: f64) -> f64 {
        let window = self.changes.len();
        let slot = &mut self.changes[index % window];
        self.changes_sum += jump - *slot;
        *slot = jump;
        if index.is_multiple_of(window) {
            // Removes accumulated rounding errors, which would dominate when the values stop changing.
            self.changes_sum = self.changes.iter().sum();
        }
        (self.changes_sum.max(0.0) / (index + 1).min(window) as f64 + 1e-9).ln()
    }

    /// Ends the block before the value at `index` and adds it to the history.
    pub(super) fn close_block(&mut self, index: usize) {
        let block = index - self.blocks.length..index;
        self.histories.jumps.add(deviation(block.clone().map(|index| self.jump(index)).collect()));
        if let Some(values) = quantiles(self.values[block].to_vec()) {
            self.histories.medians.add(values[1]);
            self.histories.widths.add(spread(values));
        }
        let residuals = mem::take(&mut self.block_residuals);
        let residual_smooths = mem::take(&mut self.block_residual_smooths);
        if residuals.len() * 2 >= self.blocks.length {
            self.histories.residuals.add(deviation(residuals));
            self.histories.residual_smooths.add(deviation(residual_smooths));
        }
        // After eight blocks, short blocks update the reference less often: each changes it little.
        let update_every = 64_usize.div_ceil(self.blocks.length);
        let closed = index / self.blocks.length;
        if closed <= 8 || closed.is_multiple_of(update_every) {
            self.reference = self.measure(index);
        }
    }

    /// Centre and scale of each signal from the history. Lower bounds keep a scale from being zero.
    fn measure(&self, index: usize) -> Option<Reference> {
        // Above rounding errors.
        let min_scale = 1e-9 * self.values[index - 1].abs().max(1.0);
        let known = &self.histories;
        let medians = known.medians.quantiles()?;
        let level = known.widths.median()?.hypot(spread(medians)).max(min_scale);
        let smooths = known.smooths.quantiles()?;
        let spreads = known.spreads.quantiles()?;
        // Without days to compare with, an infinite scale keeps the signal at zero.
        let daily =
            |history: &History| history.median().map_or(f64::INFINITY, |scale| scale.max(1e-3 * level));
        Some([
            (medians[1], level),
            (smooths[1], spread(smooths).max(0.2 * level)),
            (0.0, known.jumps.median()?.max(min_scale)),
            (spreads[1], spread(spreads).max(0.05)),
            (0.0, daily(&known.residuals)),
            (0.0, daily(&known.residual_smooths)),
            (0.0, 1.0),
        ])
    }
}

/// The weight of a new value in an exponential mean with a time constant of `count` values.
fn smoothing(count: f64) -> f64 {
    -(-1.0 / count).exp_m1()
}

/// The values relative to the median of the first block, in units of its spread. Makes the result independent of
/// affine transformations such as units, and prevents overflow.
fn normalized(values: &[f64], first_block: usize) -> Vec<f64> {
    let first = &values[..first_block.min(values.len())];
    let Some(quantiles) = quantiles(first.to_vec()) else { return Vec::new() };
    let largest = first.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    // Halves, because the difference of two doubles may overflow.
    let width = quantiles[2] / 2.0 - quantiles[0] / 2.0;
    let unit = [width, 1e-9 * largest, f64::MIN_POSITIVE].into_iter().fold(0.0, f64::max);
    let from_center = |value: &f64| (value / 2.0 - quantiles[1] / 2.0) / unit;
    values.iter().map(|value| from_center(value).clamp(-MAX_NORMALIZED, MAX_NORMALIZED)).collect()
}
