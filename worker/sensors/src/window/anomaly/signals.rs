//! The signals, each in standard deviations of its own past.

use super::history::{History, deviation, quantiles, spread};
use super::season::DailySeason;
use super::{BlockLayout, COUNT, Scores};

/// Samples that a block adds to the histories of slow signals.
const SAMPLES_PER_BLOCK: usize = 4;

/// Values are clamped to this, in units of the first block's spread.
const MAX_NORMALIZED: f64 = 1e12;

/// Centre and scale of each signal, updated at the end of blocks.
#[derive(Debug, Clone, Copy)]
struct Reference {
    center: f64,
    level: f64,
    trend_center: f64,
    trend: f64,
    jump: f64,
    spread_center: f64,
    spread: f64,
    daily: Option<f64>,
    daily_trend: Option<f64>,
}

/// Computes the signals, value by value.
pub(super) struct Signals<'a> {
    blocks: BlockLayout,
    seconds: &'a [f64],
    /// The values relative to the median of the first block, in units of its spread.
    values: Vec<f64>,
    season: DailySeason,
    reference: Option<Reference>,

    /// The weights of a new value in the exponential means over half a block and over a twelfth.
    weights: (f64, f64),
    previous: f64,
    smooth: f64,
    residual_smooth: f64,
    /// How often the last value has been repeated.
    repeated: usize,
    /// Ring of the absolute changes of the last quarter block, and their sum.
    changes: Vec<f64>,
    changes_sum: f64,

    /// The current block.
    block: Block,
    medians: History,
    widths: History,
    jumps: History,
    smooths: History,
    spreads: History,
    residuals: History,
    residual_smooths: History,
}

/// The numbers of the current block.
#[derive(Default)]
struct Block {
    values: Vec<f64>,
    jumps: Vec<f64>,
    residuals: Vec<f64>,
    residual_smooths: Vec<f64>,
}

impl<'a> Signals<'a> {
    pub(super) fn new(blocks: BlockLayout, seconds: &'a [f64], values: &[f64]) -> Self {
        let values = normalized(values, blocks.length);
        let first = values.first().copied().unwrap_or_default();
        Self {
            season: DailySeason::new(blocks),
            reference: None,
            weights: (smoothing(blocks.length as f64 / 2.0), smoothing(blocks.length as f64 / 12.0)),
            previous: first,
            smooth: first,
            residual_smooth: 0.0,
            repeated: 0,
            changes: vec![0.0; (blocks.length / 4).max(8)],
            changes_sum: 0.0,
            block: Block::default(),
            medians: History::new(1),
            widths: History::new(1),
            jumps: History::new(1),
            smooths: History::new(SAMPLES_PER_BLOCK),
            spreads: History::new(SAMPLES_PER_BLOCK),
            residuals: History::new(1),
            residual_smooths: History::new(1),
            blocks,
            seconds,
            values,
        }
    }

    /// The signals at the value at `index`. Must be called for each value in order.
    pub(super) fn next(&mut self, index: usize) -> Scores {
        let value = self.values[index];
        let jump = (value - self.previous).abs();
        self.repeated = if value == self.previous { self.repeated + 1 } else { 1 };
        self.previous = value;
        self.smooth += self.weights.0 * (value - self.smooth);
        let variation = self.variation(index, jump);
        let residual =
            self.season.expected(self.seconds, &self.values, index).map(|expected| value - expected);
        if let Some(residual) = residual {
            self.residual_smooth += self.weights.1 * (residual - self.residual_smooth);
            self.block.residuals.push(residual.abs());
            self.block.residual_smooths.push(self.residual_smooth.abs());
        }
        self.block.values.push(value);
        self.block.jumps.push(jump);
        if (index + 1).is_multiple_of(self.blocks.length / SAMPLES_PER_BLOCK) {
            self.smooths.add(self.smooth);
            self.spreads.add(variation);
        }
        let Some(reference) = self.reference else { return [0.0; COUNT] };
        let daily = |scale: Option<f64>, residual: f64| scale.map_or(0.0, |scale| residual.abs() / scale);
        [
            (value - reference.center).abs() / reference.level,
            (self.smooth - reference.trend_center).abs() / reference.trend,
            jump / reference.jump,
            (variation - reference.spread_center).abs() / reference.spread,
            residual.map_or(0.0, |residual| daily(reference.daily, residual)),
            residual.map_or(0.0, |_| daily(reference.daily_trend, self.residual_smooth)),
            self.repeated.min(self.blocks.length) as f64,
        ]
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
        let Block { values, jumps, residuals, residual_smooths } = &mut self.block;
        if let Some(block) = quantiles(values) {
            self.medians.add(block[1]);
            self.widths.add(spread(block));
        }
        deviation(jumps).into_iter().for_each(|jump| self.jumps.add(jump));
        if residuals.len() * 2 >= self.blocks.length {
            deviation(residuals).into_iter().for_each(|residual| self.residuals.add(residual));
            deviation(residual_smooths).into_iter().for_each(|residual| self.residual_smooths.add(residual));
        }
        for list in [values, jumps, residuals, residual_smooths] {
            list.clear();
        }
        // After eight blocks, short blocks update the reference less often: each changes it little.
        let update_every = 64_usize.div_ceil(self.blocks.length);
        let closed = index / self.blocks.length;
        if closed <= 8 || closed.is_multiple_of(update_every) {
            self.reference = self.measure(index);
        }
    }

    /// Centre and scale of each signal from the history. Lower bounds keep a scale from being zero.
    fn measure(&mut self, index: usize) -> Option<Reference> {
        let medians = self.medians.quantiles()?;
        let width = self.widths.quantiles()?[1];
        let level = width.hypot(spread(medians)).max(min_scale(self.values[index - 1]));
        let smooths = self.smooths.quantiles()?;
        let spreads = self.spreads.quantiles()?;
        let median_of = |history: &mut History| history.quantiles().map(|quantiles| quantiles[1]);
        Some(Reference {
            center: medians[1],
            level,
            trend_center: smooths[1],
            trend: spread(smooths).max(0.2 * level),
            jump: median_of(&mut self.jumps)?.max(min_scale(self.values[index - 1])),
            spread_center: spreads[1],
            spread: spread(spreads).max(0.05),
            daily: median_of(&mut self.residuals).map(|scale| scale.max(1e-3 * level)),
            daily_trend: median_of(&mut self.residual_smooths).map(|scale| scale.max(1e-3 * level)),
        })
    }
}

/// The weight of a new value in an exponential mean with a time constant of `count` values.
fn smoothing(count: f64) -> f64 {
    -(-1.0 / count).exp_m1()
}

/// A lower bound for scales, above rounding errors.
fn min_scale(value: f64) -> f64 {
    1e-9 * value.abs().max(1.0)
}

/// The values relative to the median of the first block, in units of its spread. Makes the result independent of
/// affine transformations such as units, and prevents overflow.
fn normalized(values: &[f64], first_block: usize) -> Vec<f64> {
    let mut first = values[..first_block.min(values.len())].to_vec();
    let Some(quantiles) = quantiles(&mut first) else { return Vec::new() };
    let largest = first.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    // Halves, because the difference of two doubles may overflow.
    let width = quantiles[2] / 2.0 - quantiles[0] / 2.0;
    let unit = [width, 1e-9 * largest, f64::MIN_POSITIVE].into_iter().fold(0.0, f64::max);
    let from_center = |value: &f64| (value / 2.0 - quantiles[1] / 2.0) / unit;
    values.iter().map(|value| from_center(value).clamp(-MAX_NORMALIZED, MAX_NORMALIZED)).collect()
}
