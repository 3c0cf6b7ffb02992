//! Stretches of a series unlike anything before them, found without looking ahead.
//!
//! Seven signals are taken from the series, each from a value and those before it:
//!
//! | signal | what it notices |
//! | --- | --- |
//! | `level` | distance from the median of the last 28 blocks: outliers, steps |
//! | `trend` | the same of the value smoothed over half a block: slow rises and falls |
//! | `jump` | change from value to value |
//! | `spread` | how much the values vary from one to the next, lately: noise, or its end |
//! | `daily` | distance from what the days before had at this time of day |
//! | `daily-trend` | the same, smoothed over two hours (a twelfth of a block) |
//! | `stuck` | how often the same value has been repeated |
//!
//! A block is a day, or 64 values where they come faster than 512 a day, at least 24 values. Each
//! signal is measured in deviations of its own recent past, so the unit does not matter.
//!
//! When is a signal extraordinary? When it exceeds the highest it reached in any block of the last
//! four weeks, by a margin that shrinks as blocks accumulate, and a floor. A stationary signal does
//! that about once in four weeks whatever its distribution: that, and not a multiple of sigma,
//! keeps false alarms rare on data that is not normal. An alarm raises the bar for a week. It
//! enters the history clipped, so that one failure does not hide the next.
//!
//! The settings are the same for every recording; there are none to give.

use garenne_protocol::sensor::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod history;
mod season;
mod signals;
mod threshold;

use signals::Signals;
use threshold::Threshold;

/// A stretch that stands out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Anomaly {
    /// The first value that stood out.
    pub start: Timestamp,
    /// The last one.
    pub end: Timestamp,
    /// How many times the threshold the highest of them reached; more than 1.
    pub score: f64,
    /// The signal that reached it.
    pub signal: Signal,
}

/// What about the values stood out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the module's table says what each notices")]
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
    /// All of them, in the order of `Scores`.
    pub const ALL: [Self; COUNT] =
        [Self::Level, Self::Trend, Self::Jump, Self::Spread, Self::Daily, Self::DailyTrend, Self::Stuck];

    /// Below this nothing is extraordinary, however calm the past: deviations; repetitions for
    /// `stuck`.
    const fn floor(self) -> f64 {
        match self {
            Self::Level | Self::Trend => 3.5,
            Self::Spread | Self::Daily | Self::DailyTrend => 4.0,
            Self::Jump => 5.0,
            Self::Stuck => 8.0,
        }
    }
}

/// How many signals there are.
const COUNT: usize = 7;

/// The signals at one value.
type Scores = [f64; COUNT];

/// Seconds in a day.
const DAY: f64 = 86_400.0;

/// Values that come faster than this many a day have short blocks.
const MOST_A_DAY: f64 = 512.0;

/// How the series is divided, by the pace of its first values.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    /// Typical seconds between values.
    pace: f64,
    /// Values in a block.
    length: usize,
    /// Blocks in four weeks.
    month: usize,
}

impl Blocks {
    /// None for a series too short to have a history, or of one instant.
    fn of(seconds: &[f64]) -> Option<Self> {
        let mut steps: Vec<f64> = seconds.windows(2).take(32).map(|pair| pair[1] - pair[0]).collect();
        steps.retain(|step| *step > 0.0);
        steps.sort_unstable_by(f64::total_cmp);
        let pace = *steps.get(steps.len() / 2)?;
        let a_day = (DAY / pace).round();
        let length = if a_day > MOST_A_DAY { 64 } else { (a_day as usize).max(24) };
        let month = (28.0 * DAY / (length as f64 * pace)).ceil();
        let is_long_enough = seconds.len() > 4 * length;
        is_long_enough.then_some(Self { pace, length, month: (month as usize).max(28) })
    }
}

/// A stretch by the places of its first and last value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// Place of the first value that stood out.
    pub first: usize,
    /// Place of the last.
    pub last: usize,
    /// As [`Anomaly::score`].
    pub score: f64,
    /// As [`Anomaly::signal`].
    pub signal: Signal,
}

impl Found {
    /// With times instead of places.
    pub fn at(self, time: impl Fn(usize) -> Timestamp) -> Anomaly {
        Anomaly { start: time(self.first), end: time(self.last), score: self.score, signal: self.signal }
    }
}

/// Finds the anomalies of finite values, `seconds` ascending. What is found up to some value does
/// not depend on any later one. Nothing is found in the first four blocks: there is no past yet.
pub fn find(seconds: &[f64], values: &[f64]) -> Vec<Found> {
    let Some(blocks) = Blocks::of(seconds) else { return Vec::new() };
    let mut signals = Signals::new(blocks, seconds, values);
    let mut threshold = Threshold::new(blocks);
    let mut found: Vec<Found> = Vec::new();
    for (place, second) in seconds.iter().enumerate() {
        if place.is_multiple_of(blocks.length) && place > 0 {
            signals.close_block(place);
            if place > blocks.length {
                threshold.close_block();
            }
        }
        let scores = signals.next(place);
        let Some((signal, score)) = threshold.judge(place, *second, &scores) else { continue };
        match found.last_mut() {
            Some(stretch) if place - stretch.last <= blocks.length => {
                stretch.last = place;
                if score > stretch.score {
                    (stretch.score, stretch.signal) = (score, signal);
                }
            }
            _ => found.push(Found { first: place, last: place, score, signal }),
        }
    }
    found
}

#[cfg(test)]
mod tests;
