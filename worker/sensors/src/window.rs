//! `window.analyze`: what a window of one metric's values says, robustly.
//!
//! A pure function of the values and their times. Times may be unevenly spaced and unordered
//! (they are sorted first, indices in the answer are those of the input); a missing value is
//! `null`. Every statistic is the one NumPy or SciPy calls by that name, and tested against it;
//! what has no value for an input is `null`, and an input that says nothing is refused by name.

use garenne_protocol::sensor::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub mod anomaly;
pub mod cusum;
pub mod hampel;
pub mod moments;
pub mod order;
pub mod task;
pub mod theil_sen;

use anomaly::Anomaly;
use cusum::Drift;

/// Most values in one window.
pub const MOST_VALUES: usize = 1_000_000;

/// The task: values inline, or a stretch of time to be read back from the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// The device that measured.
    pub device: String,
    /// What it measured.
    pub metric: String,
    /// When each value was measured, in any order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Vec<Timestamp>>,
    /// The values; `null` for a missing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<Option<f64>>>,
    /// Start of the stretch to read back, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// End of the stretch to read back, exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
    /// Compute the slope and its interval from every pair of values however many there are; above
    /// 2,048 values a sample of pairs is taken otherwise.
    #[serde(default)]
    pub exact: bool,
}

/// Where a window's values are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source<'a> {
    /// In the payload.
    Inline(Series<'a>),
    /// In the store, from the first instant up to but not including the second.
    Stored(Timestamp, Timestamp),
}

/// Values and their times, side by side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Series<'a> {
    /// When.
    pub times: &'a [Timestamp],
    /// How much; none where the value is missing. As many as times.
    pub values: &'a [Option<f64>],
}

/// Why a window cannot be analyzed. Another attempt would not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Neither or both of the two ways to give values.
    #[error("give either times and values, or from and to")]
    Source,
    /// As many times as values are needed.
    #[error("{times} times for {values} values")]
    Lengths {
        /// How many times there are.
        times: usize,
        /// How many values there are.
        values: usize,
    },
    /// Too many values.
    #[error("{values} values; {MOST_VALUES} are allowed")]
    TooMany {
        /// How many values there are.
        values: usize,
    },
    /// The stretch ends before it starts.
    #[error("from {from} is not before to {to}")]
    Backwards {
        /// Start of the stretch.
        from: Timestamp,
        /// Its end.
        to: Timestamp,
    },
    /// A value that is NaN or infinite; JSON has none, other callers may.
    #[error("value {index} is not finite")]
    NotFinite {
        /// Its place in the input.
        index: usize,
    },
    /// No value, or only missing ones.
    #[error("no value to analyze")]
    Empty,
}

/// What the window says. Values are in the metric's unit; indices count from 0 in the input.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Answer {
    /// Values that are there.
    pub count: usize,
    /// Values that are missing.
    pub missing: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation with n-1; null for one value, or where it exceeds a double.
    pub std: Option<f64>,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Median.
    pub median: f64,
    /// Median absolute deviation from the median, not scaled.
    pub mad: f64,
    /// Quantiles, linear between values as NumPy's default.
    pub quantiles: Quantiles,
    /// Theil–Sen slope, per second; null when all values are of one instant.
    pub slope: Option<f64>,
    /// 95 % confidence interval of the slope (Sen 1968, as SciPy).
    pub slope_interval: Option<[f64; 2]>,
    /// Whether the slope is that of every pair and not of a sample.
    pub slope_exact: bool,
    /// How far the newest value is from the 256 before it, in scaled median absolute deviations;
    /// null with fewer than eight before it, or when those do not vary.
    pub robust_z: Option<f64>,
    /// Values that stand out from their neighbours (Hampel).
    pub outliers: Vec<usize>,
    /// Slow drift away from the window's beginning (CUSUM); null when that does not vary.
    pub drift: Option<Drift>,
    /// Stretches unlike anything before them.
    pub anomalies: Vec<Anomaly>,
}

/// Some quantiles of the values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the percentages")]
pub struct Quantiles {
    pub p01: f64,
    pub p05: f64,
    pub p25: f64,
    pub p75: f64,
    pub p95: f64,
    pub p99: f64,
}

impl Payload {
    /// Where the values are.
    ///
    /// # Errors
    /// [`Refusal::Source`], [`Refusal::Lengths`], [`Refusal::Backwards`].
    pub fn source(&self) -> Result<Source<'_>, Refusal> {
        match (&self.times, &self.values, self.from, self.to) {
            (Some(times), Some(values), None, None) => Ok(Source::Inline(Series { times, values })),
            (None, None, Some(from), Some(to)) if from < to => Ok(Source::Stored(from, to)),
            (None, None, Some(from), Some(to)) => Err(Refusal::Backwards { from, to }),
            _ => Err(Refusal::Source),
        }
    }
}

/// Analyzes a window. `exact` as [`Payload::exact`].
///
/// # Errors
/// An input that cannot be analyzed, by name.
pub fn analyze(series: Series<'_>, exact: bool) -> Result<Answer, Refusal> {
    let Series { times, values } = series;
    if times.len() != values.len() {
        return Err(Refusal::Lengths { times: times.len(), values: values.len() });
    }
    if values.len() > MOST_VALUES {
        return Err(Refusal::TooMany { values: values.len() });
    }
    if let Some(index) = values.iter().position(|value| value.is_some_and(|value| !value.is_finite())) {
        return Err(Refusal::NotFinite { index });
    }
    let (index, seconds, values) = in_order(times, values);
    if values.is_empty() {
        return Err(Refusal::Empty);
    }
    let sorted = order::sorted(&values);
    let quantile = |p| order::quantile(&sorted, p);
    let median = order::median(&sorted);
    let mad = order::mad(&sorted, median);
    let slope = theil_sen::slope(&seconds, &values, &sorted, exact);
    let at = |place: usize| index[place];
    let drift = cusum::drift(&values).map(|drift| Drift { since: drift.since.map(at), ..drift });
    Ok(Answer {
        count: values.len(),
        missing: times.len() - values.len(),
        mean: moments::mean(&values),
        std: moments::std(&values),
        min: sorted[0],
        max: sorted[sorted.len() - 1],
        median,
        mad,
        quantiles: Quantiles {
            p01: quantile(0.01),
            p05: quantile(0.05),
            p25: quantile(0.25),
            p75: quantile(0.75),
            p95: quantile(0.95),
            p99: quantile(0.99),
        },
        slope: slope.map(|slope| slope.median).filter(|slope| slope.is_finite()),
        slope_interval: slope
            .map(|slope| slope.interval)
            .filter(|interval| interval.iter().all(|end| end.is_finite())),
        slope_exact: slope.is_none_or(|slope| slope.is_exact),
        robust_z: order::robust_z(&values),
        outliers: hampel::outliers(&values, mad).into_iter().map(at).collect(),
        drift,
        anomalies: anomaly::find(&seconds, &values)
            .into_iter()
            .map(|found| found.at(|place| times[index[place]]))
            .collect(),
    })
}

/// The values that are there, in the order of their times (equal times in the input's): their
/// places in the input, seconds since the first, and the values.
fn in_order(times: &[Timestamp], values: &[Option<f64>]) -> (Vec<usize>, Vec<f64>, Vec<f64>) {
    let mut index: Vec<usize> = (0..values.len()).filter(|place| values[*place].is_some()).collect();
    if !index.is_sorted_by_key(|place| times[*place]) {
        index.sort_by_key(|place| times[*place]);
    }
    let first = index.first().map_or(0, |place| times[*place].as_micros());
    let seconds = index.iter().map(|place| (times[*place].as_micros() - first) as f64 / 1e6).collect();
    let values = index.iter().filter_map(|place| values[*place]).collect();
    (index, seconds, values)
}

#[cfg(test)]
mod tests;
