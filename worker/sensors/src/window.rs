//! `window.analyze`: robust statistics, trend, outliers and anomalies of a window of one metric's values.
//!
//! A pure function of the values and their times. Times may be unevenly spaced and unordered; values are sorted by
//! time first, and indices in the result are those of the input. A missing value is `null`. Each statistic is defined
//! and tested as in NumPy or SciPy, and is `null` if it is undefined for the input. An input without values, or with
//! invalid ones, is refused.

use std::{sync::Arc, time::Duration};

use garenne_protocol::sensor::{Timestamp, Unit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use garenne::{TaskContext, TaskError, TaskOptions, WorkerBuilder, json_payload};

use crate::name_length::check_length;

pub mod anomaly;
pub mod cusum;
pub mod hampel;
pub mod moments;
pub mod order;
mod series;
pub mod stored;
pub mod theil_sen;

use anomaly::Anomaly;
use cusum::Drift;
pub use series::Series;
use stored::ConvertedWindow;
pub use stored::{FlaggedReadings, ReadingStore, StoredWindow, WindowQuery};

/// Limit for the number of values in a window. Of a time range, flagged readings count too.
pub const MAX_VALUES: usize = 1_000_000;

/// Time limit of a task. Covers a million values read back over a slow connection.
const DEADLINE: Duration = Duration::from_secs(60);

/// The payload: values inline, or a time range to read from the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// The device that measured the values.
    #[schemars(length(max = 128))]
    pub device: String,
    /// The metric.
    #[schemars(length(max = 128))]
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
    /// The unit of the values. Stored readings are converted to it; by default to the unit of the newest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// Whether a time range includes readings that are flagged `out-of-range`, `impossible` or `not-calibrated`. By
    /// default they are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flagged: Option<FlaggedReadings>,
    /// Compute the slope and its interval from all pairs of values. Otherwise windows of more than 2,048 values use a
    /// sample of pairs.
    #[serde(default)]
    pub exact: bool,
}

json_payload!(Payload, "window.analyze");

/// The result. Indices count from 0 in the input; with a time range, in all its readings in order of time.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Answer {
    /// The unit of the values; null if it is unknown.
    pub unit: Option<Unit>,
    /// The number of values, without missing ones and those left out.
    pub count: usize,
    /// The number of missing values.
    pub missing: usize,
    /// The number of flagged readings that were left out.
    pub left_out: usize,
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
    /// Whether and since when the level changes (CUSUM of ranks); null with fewer than eight values, or if they do not
    /// vary.
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

/// Registers the kind. Without a store, tasks that give `from` and `to` are rejected.
pub fn register(builder: WorkerBuilder, store: Option<Arc<dyn ReadingStore>>) -> WorkerBuilder {
    let handler = move |_: TaskContext, payload: Payload| {
        let store = store.clone();
        async move { answer(payload, store.as_deref()).await }
    };
    builder.handle_with(handler, TaskOptions::long().deadline(DEADLINE))
}

async fn answer(payload: Payload, store: Option<&dyn ReadingStore>) -> Result<Answer, TaskError> {
    let Payload { device, metric, times, values, from, to, unit, flagged, exact } = payload;
    check_length("device", &device).map_err(TaskError::invalid)?;
    check_length("metric", &metric).map_err(TaskError::invalid)?;
    match (times, values, from, to) {
        (Some(_), Some(_), None, None) if flagged.is_some() => {
            Err(TaskError::invalid("flagged: only allowed with from and to"))
        }
        (Some(times), Some(values), None, None) => {
            let answer = analyze(&Series { times, values }, exact).map_err(TaskError::invalid)?;
            Ok(Answer { unit, ..answer })
        }
        (None, None, Some(from), Some(to)) if from < to => {
            let store = store.ok_or_else(|| {
                TaskError::reject("from and to need stored readings, and this worker has no postgres_url")
            })?;
            let flagged = flagged.unwrap_or_default();
            let query = WindowQuery { device, metric, times: from..to, limit: MAX_VALUES, flagged };
            let window = store.window(&query).await?.convert(unit).map_err(TaskError::reject)?;
            let ConvertedWindow { series, unit, left_out } = window;
            let answer = analyze(&series, exact).map_err(TaskError::reject)?;
            Ok(Answer { unit, left_out, missing: answer.missing - left_out, ..answer })
        }
        (None, None, Some(from), Some(to)) => {
            Err(TaskError::invalid(format!("from {from} is not before to {to}")))
        }
        _ => Err(TaskError::invalid("expected either times and values, or from and to")),
    }
}

/// Analyzes a window whose unit is unknown. `exact` as [`Payload::exact`]. Fails if there are no values, too many, or
/// other than times, or if one is NaN or infinite, which JSON cannot express but other callers can.
pub fn analyze(series: &Series, exact: bool) -> Result<Answer, String> {
    let Series { times, values } = series;
    let count = values.len();
    if times.len() != count {
        return Err(format!("{} times for {count} values; expected as many", times.len()));
    }
    if count > MAX_VALUES {
        return Err(format!("{count} values; at most {MAX_VALUES} are allowed"));
    }
    if let Some(index) = values.iter().position(|value| value.is_some_and(|value| !value.is_finite())) {
        return Err(format!("value {index} is not finite"));
    }
    let (index, seconds, values) = sort_by_time(times, values);
    if values.is_empty() {
        return Err("the window has no values".into());
    }
    let sorted = order::sorted(&values);
    let [p01, p05, p25, p75, p95, p99] =
        [0.01, 0.05, 0.25, 0.75, 0.95, 0.99].map(|p| order::quantile(&sorted, p));
    let median = order::median(&sorted);
    let mad = order::mad(&sorted, median);
    let slope = theil_sen::slope(&seconds, &values, &sorted, exact);
    let at = |sorted_index: usize| index[sorted_index];
    let drift = cusum::drift(&values).map(|drift| Drift { since: drift.since.map(at), ..drift });
    Ok(Answer {
        unit: None,
        count: values.len(),
        missing: times.len() - values.len(),
        left_out: 0,
        mean: moments::mean(&values),
        std: moments::std(&values),
        min: sorted[0],
        max: sorted[sorted.len() - 1],
        median,
        mad,
        quantiles: Quantiles { p01, p05, p25, p75, p95, p99 },
        slope: slope.map(|slope| slope.median).filter(|slope| slope.is_finite()),
        slope_interval: slope
            .map(|slope| slope.interval)
            .filter(|interval| interval.iter().all(|end| end.is_finite())),
        slope_exact: slope.is_none_or(|slope| slope.is_exact),
        robust_z: order::robust_z(&values),
        outliers: hampel::outliers(&values, mad).into_iter().map(at).collect(),
        drift,
        anomalies: anomaly::detect(&seconds, &values, |sorted_index| times[at(sorted_index)]),
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
