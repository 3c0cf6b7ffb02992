//! A window of stored readings: in one unit, and without flagged readings unless the request includes them.

use std::ops::Range;

use futures_util::future::BoxFuture;
use garenne::TaskError;
use garenne_protocol::sensor::{Timestamp, Unit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::series::Series;

/// How a window treats readings whose value is in doubt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FlaggedReadings {
    /// They are left out.
    #[default]
    Exclude,
    /// They are used like all others.
    Include,
}

/// Reads stored readings back. The sink that stores readings implements it, so that a worker without a database needs
/// none to compile.
pub trait ReadingStore: Send + Sync + 'static {
    /// The readings that a query selects, flagged ones included, in order of time. Its memory is bounded by the query's
    /// limit. Fails if the store is unavailable or refuses the query, or if there are more readings than the query's
    /// limit ([`WindowQuery::too_many`]).
    fn window<'a>(&'a self, query: &'a WindowQuery) -> BoxFuture<'a, Result<StoredWindow, TaskError>>;
}

/// The readings of a window.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowQuery {
    /// The device.
    pub device: String,
    /// The metric.
    pub metric: String,
    /// The times, without the end.
    pub times: Range<Timestamp>,
    /// The limit for the number of readings, flagged ones included.
    pub limit: usize,
    /// How flagged readings are treated.
    pub flagged: FlaggedReadings,
}

impl WindowQuery {
    /// The error of a window with more readings than its limit.
    pub fn too_many(&self) -> TaskError {
        let Self { device, metric, times: Range { start, end }, limit, .. } = self;
        TaskError::reject(format!(
            "more than {limit} readings of {device} {metric} are stored from {start} to {end}, flagged ones included; at \
             most {limit} are allowed"
        ))
    }
}

/// Stored readings in order of time.
#[derive(Debug)]
pub struct StoredWindow {
    flagged: FlaggedReadings,
    series: Series,
    /// The unit of each reading.
    units: Vec<Option<Unit>>,
    left_out: usize,
}

/// The readings of a window in one unit.
#[derive(Debug, PartialEq)]
pub struct ConvertedWindow {
    /// The readings. One that is left out is a missing value, so that indices count all readings.
    pub series: Series,
    /// The unit of the values, if they have one.
    pub unit: Option<Unit>,
    /// The number of flagged readings that are left out.
    pub left_out: usize,
}

impl StoredWindow {
    /// A window without readings.
    pub fn new(flagged: FlaggedReadings) -> Self {
        Self { flagged, series: Series::default(), units: Vec::new(), left_out: 0 }
    }

    /// Adds the next reading. `is_usable` as [`CalibratedReading::is_usable`](crate::reading::CalibratedReading::is_usable).
    pub fn push(
        &mut self,
        time: Timestamp,
        value: f64,
        unit: Option<&str>,
        is_usable: bool,
    ) -> Result<(), String> {
        let is_used = is_usable || self.flagged == FlaggedReadings::Include;
        let unit = match unit.filter(|_| is_used) {
            Some(symbol) => Some(
                Unit::parse(symbol)
                    .map_err(|error| format!("unit of the stored reading of {time}: {error}"))?,
            ),
            None => None,
        };
        self.left_out += usize::from(!is_used);
        self.series.times.push(time);
        self.series.values.push(is_used.then_some(value));
        self.units.push(unit);
        Ok(())
    }

    /// Converts the readings to `unit`, or to that of the newest one. Readings without a unit are taken to be in
    /// `unit`, as by calibrations and alarm rules. Fails if some readings cannot be converted, or all are left out.
    pub fn convert(self, unit: Option<Unit>) -> Result<ConvertedWindow, String> {
        let Self { mut series, units, left_out, .. } = self;
        let used = series.values.len() - left_out;
        if used == 0 && left_out > 0 {
            return Err(format!(
                "all {left_out} readings of the window are flagged; \"flagged\": \"include\" includes them"
            ));
        }
        let newest = series.values.iter().rposition(Option::is_some);
        let target = unit.or_else(|| units[newest?]);
        let convert = |value: f64, own: Option<Unit>| match (own, target) {
            (Some(own), Some(target)) => own.convert(value, target).ok(),
            (Some(_), None) => None,
            (None, target) => Some(value).filter(|_| target == unit),
        };
        let (mut other, mut first_other) = (0, None);
        for (index, (slot, own)) in series.values.iter_mut().zip(&units).enumerate() {
            let Some(value) = slot else { continue };
            if let Some(converted) = convert(*value, *own) {
                *value = converted;
            } else {
                other += 1;
                first_other.get_or_insert(index);
            }
        }
        let Some(first) = first_other else { return Ok(ConvertedWindow { series, unit: target, left_out }) };
        let time = series.times[first];
        let problem = target.map_or_else(
            || "have a unit, but the newest one has none".to_owned(),
            |target| format!("cannot be converted to {target} ({})", target.description()),
        );
        let own = units[first]
            .map_or_else(|| "has no unit".to_owned(), |own| format!("is in {own} ({})", own.description()));
        Err(format!("unit: {other} of {used} readings {problem}; the first of them, of {time}, {own}"))
    }
}

#[cfg(test)]
mod tests;
