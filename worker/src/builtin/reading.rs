//! `reading.process`: what happens to a reading between the sensor and the store.
//!
//! A pure function of the readings and the calibration: convert the unit, correct the value, judge
//! it, and derive what temperature and humidity of one place and time say together. What has to
//! remember earlier readings belongs elsewhere.

use std::sync::Arc;

use garenne_protocol::sensor::{Record, Timestamp, Unit};
use schemars::JsonSchema;
use serde::Serialize;

pub mod calibration;
pub mod derive;
pub mod quality;
pub mod task;
mod together;
pub mod watch;

pub use calibration::Calibration;
pub use quality::{Flag, Quality};

/// A reading as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Stored {
    /// Who measured.
    pub device: Arc<str>,
    /// What was measured, or derived.
    pub metric: Arc<str>,
    /// When.
    pub time: Timestamp,
    /// The calibrated value, in `unit`.
    pub value: f64,
    /// The unit of `value`: the calibration's, else the sender's, else unknown.
    pub unit: Option<Unit>,
    /// The value as the sender gave it; null for a derived one.
    pub raw: Option<f64>,
    /// The unit of `raw` where it is not `unit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_unit: Option<Unit>,
    /// What is to be said against the value; nothing for a good one.
    pub quality: Quality,
}

/// The outcome of one task: every reading it brought, in its order, and what they gave together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Processed {
    /// The readings of the task.
    pub readings: Vec<Stored>,
    /// Dew point, absolute humidity and heat index, where temperature and humidity of one device
    /// and time came together.
    pub derived: Vec<Stored>,
}

/// Processes the readings of one task.
pub fn process(records: &[Record], calibration: &Calibration) -> Processed {
    let readings: Vec<_> = records.iter().map(|record| stored(record, calibration)).collect();
    let derived = derive::all(&readings);
    Processed { readings, derived }
}

fn stored(record: &Record, calibration: &Calibration) -> Stored {
    let reading = &record.reading;
    let mut quality = Quality::default();
    if record.time_assumed {
        quality.set(Flag::TimeAssumed);
    }
    let rule = calibration.rule(&reading.device, &reading.metric);
    let (value, unit) = match rule.map(|rule| rule.apply(reading.value, reading.unit)) {
        None => (reading.value, reading.unit),
        Some(Ok(calibrated)) => calibrated,
        // Flagged and kept as it came: a value in the wrong unit is a fault to be seen, and a
        // guessed conversion would hide it.
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
    Stored {
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
