//! Calibration rules per device and metric, from a TOML file.
//!
//! ```toml
//! [[calibration]]
//! device = "greenhouse-1"      # "*" or absent: every device without a rule of its own
//! metric = "temperature"
//! unit   = "Cel"               # values are converted to it first
//! gain   = 1.02                # value * gain + offset
//! offset = -0.3
//! valid  = [-40.0, 85.0]       # other values are flagged out-of-range and stored
//!
//! [[calibration]]
//! device = "flow-7"
//! metric = "flow"
//! polynomial = [0.02, 0.98, 1.5e-4]   # 0.02 + 0.98 x + 0.00015 x², instead of gain and offset
//! ```

use std::{collections::HashMap, path::Path};

use garenne_common::config::parse_toml;
use garenne_protocol::sensor::{Record, Unit};
use serde::Deserialize;

use super::{
    quality::{Flag, Quality, is_impossible},
    stored_reading::StoredReading,
};
use crate::toml_file::{self, EVERY_DEVICE, every_device, finite, unit};

/// The rules of a file. A value without a rule is stored as sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibration {
    /// By device and metric.
    rules: HashMap<String, HashMap<String, Rule>>,
}

/// The calibration of one device's metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    unit: Option<Unit>,
    /// The coefficients of the correction in ascending order of their power, from the constant term.
    polynomial: Vec<f64>,
    /// The lowest and highest valid value, after correction.
    valid: Option<[f64; 2]>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CalibrationFile {
    #[serde(default)]
    calibration: Vec<RuleEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    #[serde(default = "every_device")]
    device: String,
    metric: String,
    unit: Option<String>,
    gain: Option<f64>,
    offset: Option<f64>,
    polynomial: Option<Vec<f64>>,
    valid: Option<[f64; 2]>,
}

/// Limit for the coefficients of a polynomial; sensor data sheets have fewer.
const MAX_COEFFICIENTS: usize = 10;

impl Calibration {
    /// Reads a calibration file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or holds an invalid rule. Names the first problem.
    pub fn load(path: &Path) -> Result<Self, String> {
        toml_file::load("calibration file", path, Self::parse)
    }

    /// Parses rules in TOML.
    ///
    /// # Errors
    /// The text is not TOML, or holds an invalid rule: names the rule, the value, and the allowed values.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: CalibrationFile = parse_toml(text)?;
        let mut calibration = Self::default();
        for (index, entry) in file.calibration.into_iter().enumerate() {
            let position =
                format!("rule {} (device {:?}, metric {:?})", index + 1, entry.device, entry.metric);
            let (device, metric) = (entry.device.clone(), entry.metric.clone());
            let rule = Rule::from_entry(entry).map_err(|message| format!("{position}: {message}"))?;
            if calibration.rules.entry(device).or_default().insert(metric, rule).is_some() {
                return Err(format!("{position}: duplicate rule"));
            }
        }
        Ok(calibration)
    }

    /// The rule for a device's metric: that of the device, else that for every device.
    pub fn rule(&self, device: &str, metric: &str) -> Option<&Rule> {
        let of_device = |device: &str| self.rules.get(device)?.get(metric);
        of_device(device).or_else(|| of_device(EVERY_DEVICE))
    }

    /// The reading as it is stored: with its unit converted, its value corrected, and flags.
    pub fn apply(&self, record: &Record) -> StoredReading {
        let reading = &record.reading;
        let mut quality = Quality::default();
        if record.time_assumed {
            quality.insert(Flag::TimeAssumed);
        }
        let (mut value, mut unit) = (reading.value, reading.unit);
        if let Some(rule) = self.rule(&reading.device, &reading.metric) {
            match rule.apply(value, unit) {
                Ok(calibrated) => {
                    (value, unit) = calibrated;
                    if !rule.is_valid(value) {
                        quality.insert(Flag::OutOfRange);
                    }
                }
                // The value is kept as sent: a guessed conversion would hide the wrong unit.
                Err(flag) => {
                    quality.insert(flag);
                }
            }
        }
        if unit.is_some_and(|unit| is_impossible(value, unit)) {
            quality.insert(Flag::Impossible);
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
}

impl Rule {
    fn from_entry(entry: RuleEntry) -> Result<Self, String> {
        if entry.metric.is_empty() || entry.device.is_empty() {
            return Err("device and metric must not be empty; \"*\" is every device".to_owned());
        }
        let polynomial = match (entry.polynomial, entry.gain, entry.offset) {
            (Some(polynomial), None, None) => {
                let count = polynomial.len();
                if !(1..=MAX_COEFFICIENTS).contains(&count) {
                    return Err(format!(
                        "polynomial: {count} coefficients; expected 1 to {MAX_COEFFICIENTS}"
                    ));
                }
                polynomial.into_iter().map(|number| finite("polynomial", number)).collect::<Result<_, _>>()?
            }
            (None, gain, offset) => {
                let gain = finite("gain", gain.unwrap_or(1.0))?;
                vec![finite("offset", offset.unwrap_or(0.0))?, gain]
            }
            _ => return Err("polynomial: not allowed with gain or offset".to_owned()),
        };
        if let Some([low, high]) = entry.valid
            && (low.is_nan() || high.is_nan() || low > high)
        {
            return Err(format!("valid: [{low}, {high}] is not a range; expected [low, high]"));
        }
        Ok(Self { unit: unit(entry.unit.as_deref())?, polynomial, valid: entry.valid })
    }

    /// Converts a value to the rule's unit and corrects it. A value without a unit is taken to be in the rule's
    /// unit.
    ///
    /// # Errors
    /// [`Flag::NotCalibrated`] if the units measure different quantities or the result is not finite.
    pub fn apply(&self, value: f64, unit: Option<Unit>) -> Result<(f64, Option<Unit>), Flag> {
        let converted = match (unit, self.unit) {
            (Some(from), Some(to)) => from.convert(value, to).map_err(|_| Flag::NotCalibrated)?,
            _ => value,
        };
        let descending = self.polynomial.iter().rev();
        let corrected = descending.fold(0.0, |sum, coefficient| sum * converted + coefficient);
        if corrected.is_finite() { Ok((corrected, self.unit.or(unit))) } else { Err(Flag::NotCalibrated) }
    }

    /// Whether a corrected value is in the rule's `valid` range.
    pub fn is_valid(&self, value: f64) -> bool {
        self.valid.is_none_or(|[low, high]| (low..=high).contains(&value))
    }
}

#[cfg(test)]
mod tests;
