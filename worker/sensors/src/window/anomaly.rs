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

mod blocks;
mod history;
mod season;
mod signals;
mod threshold;

use blocks::BlockLayout;
pub use signals::Signal;
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

/// Detects the anomalies of finite values. `seconds` are ascending, `time` is the time of the value at an index. Later
/// values do not change earlier results. The first four blocks have no anomalies, because they have too little history.
pub fn detect(seconds: &[f64], values: &[f64], time: impl Fn(usize) -> Timestamp) -> Vec<Anomaly> {
    let Some(blocks) = BlockLayout::of(seconds) else { return Vec::new() };
    let mut signals = Signals::new(blocks, seconds, values);
    let mut threshold = Threshold::new(blocks.blocks_per_month);
    let mut found: Vec<Anomaly> = Vec::new();
    let mut last = None;
    for (index, second) in seconds.iter().enumerate() {
        if index.is_multiple_of(blocks.length) && index > 0 {
            signals.close_block(index);
            if index > blocks.length {
                threshold.close_block();
            }
        }
        let scores = signals.next(index);
        let continues = last.is_some_and(|last| index - last <= blocks.length);
        let Some((signal, score)) = threshold.evaluate(*second, &scores, continues) else { continue };
        last = Some(index);
        match found.last_mut() {
            Some(anomaly) if continues => {
                anomaly.end = time(index);
                if score > anomaly.score {
                    (anomaly.score, anomaly.signal) = (score, signal);
                }
            }
            _ => found.push(Anomaly { start: time(index), end: time(index), score, signal }),
        }
    }
    found
}

#[cfg(test)]
mod tests;
