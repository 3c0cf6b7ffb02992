//! Detects anomalous intervals of a series, causally: each value is compared with those before it only.
//!
//! Seven signals are derived from the series:
//!
//! | signal | definition |
//! | --- | --- |
//! | `level` | distance from the median of the last 28 blocks: outliers, steps |
//! | `trend` | the same for the value smoothed over half a block: slow rises and falls |
//! | `jump` | absolute change from the previous value |
//! | `spread` | mean absolute change over the last quarter block: more or less noise than usual |
//! | `daily` | distance from the median of the days before at the same time of day |
//! | `daily-trend` | the same, smoothed over two hours (a twelfth of a block) |
//! | `stuck` | the number of repetitions of the same value |
//!
//! A block is a day, but at least 24 values; with more than 512 values a day it is 64 values. Each signal is measured
//! in standard deviations of its own recent past, so the result does not depend on the unit.
//!
//! A signal is anomalous if it exceeds both a floor and its highest value in any block of the last four weeks, by a
//! margin that shrinks as blocks accumulate. A stationary signal does that about once in four weeks regardless of its
//! distribution. A multiple of sigma would give more false alarms on data that are not normal. Each alarm raises the
//! threshold for a week. It enters the history clipped, so that one failure does not hide the next.
//!
//! All parameters are constants; none depends on the recording.

use garenne_protocol::sensor::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod history;
mod season;
mod signals;
mod threshold;

use signals::Signals;
use threshold::Threshold;

/// An anomalous interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Anomaly {
    /// The time of the first anomalous value.
    pub start: Timestamp,
    /// The time of the last anomalous value.
    pub end: Timestamp,
    /// The highest ratio of a signal to its threshold; more than 1.
    pub score: f64,
    /// The signal with that ratio.
    pub signal: Signal,
}

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
    const fn floor(self) -> f64 {
        match self {
            Self::Level | Self::Trend => 3.5,
            Self::Spread | Self::Daily | Self::DailyTrend => 4.0,
            Self::Jump => 5.0,
            Self::Stuck => 8.0,
        }
    }
}

/// The number of signals.
const COUNT: usize = 7;

/// The signals at one value, in the order of [`Signal::ALL`].
type Scores = [f64; COUNT];

/// Seconds in a day.
const DAY: f64 = 86_400.0;

/// Series with more values per day have blocks of 64 values.
const MAX_VALUES_PER_DAILY_BLOCK: f64 = 512.0;

/// The division of a series into blocks, from the sampling interval of its first values.
#[derive(Debug, Clone, Copy)]
struct BlockLayout {
    /// The median interval between values, in seconds.
    interval: f64,
    /// Values in a block.
    length: usize,
    /// Blocks in four weeks.
    blocks_per_month: usize,
}

impl BlockLayout {
    /// None for a series of at most four blocks, or of a single time.
    fn of(seconds: &[f64]) -> Option<Self> {
        let mut steps: Vec<f64> = seconds.windows(2).take(32).map(|pair| pair[1] - pair[0]).collect();
        steps.retain(|step| *step > 0.0);
        steps.sort_unstable_by(f64::total_cmp);
        let interval = *steps.get(steps.len() / 2)?;
        let values_per_day = (DAY / interval).round();
        let length =
            if values_per_day > MAX_VALUES_PER_DAILY_BLOCK { 64 } else { (values_per_day as usize).max(24) };
        let blocks_per_month = (28.0 * DAY / (length as f64 * interval)).ceil();
        let is_long_enough = seconds.len() > 4 * length;
        let blocks_per_month = (blocks_per_month as usize).max(28);
        is_long_enough.then_some(Self { interval, length, blocks_per_month })
    }
}

/// An anomalous interval by index.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnomalyRange {
    /// The index of the first anomalous value.
    pub first: usize,
    /// The index of the last anomalous value.
    pub last: usize,
    /// As [`Anomaly::score`].
    pub score: f64,
    /// As [`Anomaly::signal`].
    pub signal: Signal,
}

impl AnomalyRange {
    /// Replaces the indices by times.
    pub fn with_times(self, time: impl Fn(usize) -> Timestamp) -> Anomaly {
        Anomaly { start: time(self.first), end: time(self.last), score: self.score, signal: self.signal }
    }
}

/// Detects the anomalies of finite values. `seconds` are ascending. Later values do not change earlier results. The
/// first four blocks have no anomalies, because they have too little history.
pub fn detect(seconds: &[f64], values: &[f64]) -> Vec<AnomalyRange> {
    let Some(blocks) = BlockLayout::of(seconds) else { return Vec::new() };
    let mut signals = Signals::new(blocks, seconds, values);
    let mut threshold = Threshold::new(blocks);
    let mut found: Vec<AnomalyRange> = Vec::new();
    for (index, second) in seconds.iter().enumerate() {
        if index.is_multiple_of(blocks.length) && index > 0 {
            signals.close_block(index);
            if index > blocks.length {
                threshold.close_block();
            }
        }
        let scores = signals.next(index);
        let Some((signal, score)) = threshold.evaluate(index, *second, &scores) else { continue };
        match found.last_mut() {
            Some(range) if index - range.last <= blocks.length => {
                range.last = index;
                if score > range.score {
                    (range.score, range.signal) = (score, signal);
                }
            }
            _ => found.push(AnomalyRange { first: index, last: index, score, signal }),
        }
    }
    found
}

#[cfg(test)]
mod tests;
