//! `reading.process`: calibrates readings, flags implausible values and derives further metrics.
//!
//! A pure function of the readings and the calibration. It converts the unit, corrects the value, sets quality
//! flags, and derives metrics from temperature and humidity of the same device and time. It keeps no state;
//! alarm rules, which need earlier readings, are evaluated where readings are stored.

use std::sync::Arc;

use garenne_protocol::sensor::{Record, Timestamp, Unit};
use schemars::JsonSchema;
use serde::Serialize;

mod batch_derivations;
pub mod calibration;
pub mod derive;
mod payload;
pub mod quality;
pub mod task;
pub mod watch;

pub use calibration::Calibration;
pub use quality::{Flag, Quality};

/// A reading as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct StoredReading {
    /// The device that measured it.
    pub device: Arc<str>,
    /// The metric, measured or derived.
    pub metric: Arc<str>,
    /// The time of the measurement.
    pub time: Timestamp,
    /// The calibrated value, in `unit`.
    pub value: f64,
    /// The unit of `value`: that of the calibration, else that of the sender, else null.
    pub unit: Option<Unit>,
    /// The value as sent; null for a derived one.
    pub raw: Option<f64>,
    /// The unit of `raw`, if it differs from `unit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_unit: Option<Unit>,
    /// Quality flags; empty for a good value.
    pub quality: Quality,
}

/// The result of one task: its readings in order, and the values derived from them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Processed {
    /// The readings of the task.
    pub readings: Vec<StoredReading>,
    /// Dew point, absolute humidity and heat index for each pair of temperature and humidity of the same device
    /// and time.
    pub derived: Vec<StoredReading>,
}

/// Processes the readings of one task.
pub fn process(records: &[Record], calibration: &Calibration) -> Processed {
    let readings: Vec<_> = records.iter().map(|record| calibrate(record, calibration)).collect();
    let derived = derive::values(&readings);
    Processed { readings, derived }
}

fn calibrate(record: &Record, calibration: &Calibration) -> StoredReading {
    let reading = &record.reading;
    let mut quality = Quality::default();
    if record.time_assumed {
        quality.set(Flag::TimeAssumed);
    }
    let rule = calibration.rule(&reading.device, &reading.metric);
    let (value, unit) = match rule.map(|rule| rule.apply(reading.value, reading.unit)) {
        None => (reading.value, reading.unit),
        Some(Ok(calibrated)) => calibrated,
        // The value is kept as sent: a guessed conversion would hide the wrong unit.
        Some(Err(flag)) => {
            quality.set(flag);
            (reading.value, reading.unit)
        }
    };
    if let Some(rule) = rule
        && !quality.has(Flag::NotCalibrated)
        && !rule.is_valid(value)
    {
        quality.set(Flag::OutOfRange);
    }
    if unit.is_some_and(|unit| quality::is_impossible(value, unit)) {
        quality.set(Flag::Impossible);
    }
    StoredReading {
        device: reading.device.clone(),
        metric: reading.metric.clone(),
        time: reading.time,
        value,
        unit,
        raw: Some(reading.value),
        raw_unit: reading.unit.filter(|_| reading.unit != unit),
        quality,
    }
}

#[cfg(test)]
mod tests;
