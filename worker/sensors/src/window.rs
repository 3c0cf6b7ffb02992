//! `window.analyze`: robust statistics, trend, outliers and anomalies of a window of one metric's values.
//!
//! A pure function of the values and their times. Times may be unevenly spaced and unordered; values are sorted by
//! time first, and indices in the result are those of the input. A missing value is `null`. Each statistic is defined
//! and tested as in NumPy or SciPy, and is `null` if it is undefined for the input. An input without values, or with
//! invalid ones, is refused with a [`WindowError`].

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

/// Limit for the number of values in a window.
pub const MAX_VALUES: usize = 1_000_000;

/// The payload: values inline, or a time range to read from the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// The device that measured the values.
    pub device: String,
    /// The metric.
    pub metric: String,
    /// The time of each value, in any order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Vec<Timestamp>>,
    /// The values; `null` for a missing one. As many as `times`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<Option<f64>>>,
    /// The start of the time range to read, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// The end of the time range to read, exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
    /// Compute the slope and its interval from all pairs of values. Otherwise windows of more than 2,048 values use a
    /// sample of pairs.
    #[serde(default)]
    pub exact: bool,
}

/// The source of a window's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source<'a> {
    /// The payload.
    Inline(Series<'a>),
    /// The store, from the first time (inclusive) to the second (exclusive).
    Stored(Timestamp, Timestamp),
}

/// Values and their times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Series<'a> {
    /// The time of each value.
    pub times: &'a [Timestamp],
    /// The values; none for a missing one. As many as times.
    pub values: &'a [Option<f64>],
}

/// A window that cannot be analyzed. A retry would fail as well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The payload gives neither or both of values and a time range.
    #[error("expected either times and values, or from and to")]
    Source,
    /// The numbers of times and of values differ.
    #[error("{times} times for {values} values; expected as many")]
    Lengths {
        /// The number of times.
        times: usize,
        /// The number of values.
        values: usize,
    },
    /// Too many values.
    #[error("{values} values; at most {MAX_VALUES} are allowed")]
    TooMany {
        /// The number of values.
        values: usize,
    },
    /// The time range is empty.
    #[error("from {from} is not before to {to}")]
    EmptyRange {
        /// The start of the range.
        from: Timestamp,
        /// The end of the range.
        to: Timestamp,
    },
    /// A value is NaN or infinite. JSON cannot express these, but other callers can.
    #[error("value {index} is not finite")]
    NotFinite {
        /// The index of the value in the input.
        index: usize,
    },
    /// All values are missing, or there are none.
    #[error("the window has no values")]
    Empty,
}

/// The result. Values are in the metric's unit; indices count from 0 in the input.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Answer {
    /// The number of values, without missing ones.
    pub count: usize,
    /// The number of missing values.
    pub missing: usize,
    /// The arithmetic mean.
    pub mean: f64,
    /// The sample standard deviation (n-1); null for one value, or if it overflows a double.
    pub std: Option<f64>,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The median.
    pub median: f64,
    /// The median absolute deviation from the median, not scaled.
    pub mad: f64,
    /// Quantiles with linear interpolation, as NumPy's default.
    pub quantiles: Quantiles,
    /// The Theil–Sen slope, per second; null if all values have the same time.
    pub slope: Option<f64>,
    /// The 95 % confidence interval of the slope (Sen 1968, as SciPy).
    pub slope_interval: Option<[f64; 2]>,
    /// Whether the slope is computed from all pairs and not from a sample.
    pub slope_exact: bool,
    /// The robust z-score of the newest value: its distance from the median of the 256 values before it, in scaled
    /// median absolute deviations. Null with fewer than eight values before it, or if those do not vary.
    pub robust_z: Option<f64>,
    /// The indices of values that are outliers among their neighbours (Hampel).
    pub outliers: Vec<usize>,
    /// Slow drift from the window's beginning (CUSUM); null if the beginning does not vary.
    pub drift: Option<Drift>,
    /// Intervals that are unusual compared with the values before them.
    pub anomalies: Vec<Anomaly>,
}

/// Quantiles of the values.
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
    /// The source of the values.
    ///
    /// # Errors
    /// [`WindowError::Source`] and [`WindowError::EmptyRange`].
    pub fn source(&self) -> Result<Source<'_>, WindowError> {
        match (&self.times, &self.values, self.from, self.to) {
            (Some(times), Some(values), None, None) => Ok(Source::Inline(Series { times, values })),
            (None, None, Some(from), Some(to)) if from < to => Ok(Source::Stored(from, to)),
            (None, None, Some(from), Some(to)) => Err(WindowError::EmptyRange { from, to }),
            _ => Err(WindowError::Source),
        }
    }
}

/// Analyzes a window. `exact` as [`Payload::exact`].
///
/// # Errors
/// [`WindowError`], except for the variants that [`Payload::source`] returns.
pub fn analyze(series: Series<'_>, exact: bool) -> Result<Answer, WindowError> {
    let Series { times, values } = series;
    if times.len() != values.len() {
        return Err(WindowError::Lengths { times: times.len(), values: values.len() });
    }
    if values.len() > MAX_VALUES {
        return Err(WindowError::TooMany { values: values.len() });
    }
    if let Some(index) = values.iter().position(|value| value.is_some_and(|value| !value.is_finite())) {
        return Err(WindowError::NotFinite { index });
    }
    let (index, seconds, values) = sort_by_time(times, values);
    if values.is_empty() {
        return Err(WindowError::Empty);
    }
    let sorted = order::sorted(&values);
    let quantile = |p| order::quantile(&sorted, p);
    let median = order::median(&sorted);
    let mad = order::mad(&sorted, median);
    let slope = theil_sen::slope(&seconds, &values, &sorted, exact);
    let at = |sorted_index: usize| index[sorted_index];
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
        anomalies: anomaly::detect(&seconds, &values)
            .into_iter()
            .map(|range| range.with_times(|sorted_index| times[index[sorted_index]]))
            .collect(),
    })
}

/// The values without missing ones in order of time, values of the same time in the order of the input. Returns their
/// indices in the input, their seconds since the first, and the values.
fn sort_by_time(times: &[Timestamp], values: &[Option<f64>]) -> (Vec<usize>, Vec<f64>, Vec<f64>) {
    let mut index: Vec<usize> = (0..values.len()).filter(|index| values[*index].is_some()).collect();
    if !index.is_sorted_by_key(|index| times[*index]) {
        index.sort_by_key(|index| times[*index]);
    }
    let first = index.first().map_or(0, |index| times[*index].as_micros());
    let seconds = index.iter().map(|index| (times[*index].as_micros() - first) as f64 / 1e6).collect();
    let values = index.iter().filter_map(|index| values[*index]).collect();
    (index, seconds, values)
}

#[cfg(test)]
mod tests;
