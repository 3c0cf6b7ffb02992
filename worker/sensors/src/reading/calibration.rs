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

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use garenne_common::config::parse_toml;
use garenne_protocol::sensor::Unit;
use serde::Deserialize;

use super::quality::Flag;

/// The rules of a file. A value without a rule is stored as sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibration {
    /// By device and metric.
    by_device: HashMap<String, HashMap<String, Rule>>,
    /// By metric, for devices without a rule of their own.
    for_all: HashMap<String, Rule>,
}

/// The calibration of one device's metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    unit: Option<Unit>,
    correction: Correction,
    /// The lowest and highest valid value, after correction.
    valid: Option<(f64, f64)>,
}

#[derive(Debug, Clone, PartialEq)]
enum Correction {
    Linear {
        gain: f64,
        offset: f64,
    },
    /// Coefficients in ascending order of their power, from the constant term.
    Polynomial(Vec<f64>),
}

/// A calibration file that cannot be used. The message is one line.
#[derive(Debug, thiserror::Error)]
#[error("calibration file {}: {message}", .path.display())]
#[non_exhaustive]
pub struct CalibrationError {
    /// The file.
    pub path: PathBuf,
    /// The rule or line, the value, and the allowed values.
    pub message: String,
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

fn every_device() -> String {
    "*".to_owned()
}

/// Limit for the coefficients of a polynomial; sensor data sheets have fewer.
const MAX_COEFFICIENTS: usize = 10;

impl Calibration {
    /// Reads a calibration file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or holds an invalid rule. Names the first problem.
    pub fn load(path: &Path) -> Result<Self, CalibrationError> {
        let error = |message| CalibrationError { path: path.to_owned(), message };
        let text = std::fs::read_to_string(path).map_err(|problem| error(problem.to_string()))?;
        Self::parse(&text).map_err(error)
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
            let rules = match device.as_str() {
                "*" => &mut calibration.for_all,
                _ => calibration.by_device.entry(device).or_default(),
            };
            if rules.insert(metric, rule).is_some() {
                return Err(format!("{position}: duplicate rule"));
            }
        }
        Ok(calibration)
    }

    /// The rule for a device's metric: that of the device, else that for every device.
    pub fn rule(&self, device: &str, metric: &str) -> Option<&Rule> {
        let own = || self.by_device.get(device)?.get(metric);
        let common = || self.for_all.get(metric);
        // Checking for an empty map first saves the hash of the key in fleets without rules.
        (!self.by_device.is_empty())
            .then(own)
            .flatten()
            .or_else(|| (!self.for_all.is_empty()).then(common).flatten())
    }
}

impl Rule {
    fn from_entry(entry: RuleEntry) -> Result<Self, String> {
        let finite = |name: &str, number: f64| {
            if number.is_finite() {
                Ok(number)
            } else {
                Err(format!("{name}: {number} is not a finite number"))
            }
        };
        if entry.metric.is_empty() || entry.device.is_empty() {
            return Err("device and metric must not be empty; \"*\" is every device".to_owned());
        }
        let correction = match (entry.polynomial, entry.gain, entry.offset) {
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
                return Err("polynomial: not allowed with gain or offset".to_owned());
            }
            (Some(coefficients), None, None) => {
                if coefficients.is_empty() || coefficients.len() > MAX_COEFFICIENTS {
                    let count = coefficients.len();
                    return Err(format!(
                        "polynomial: {count} coefficients; expected 1 to {MAX_COEFFICIENTS}"
                    ));
                }
                for coefficient in &coefficients {
                    finite("polynomial", *coefficient)?;
                }
                Correction::Polynomial(coefficients)
            }
            (None, gain, offset) => Correction::Linear {
                gain: finite("gain", gain.unwrap_or(1.0))?,
                offset: finite("offset", offset.unwrap_or(0.0))?,
            },
        };
        let valid = match entry.valid {
            Some([low, high]) if low.is_nan() || high.is_nan() || low > high => {
                return Err(format!("valid: [{low}, {high}] is not a range; expected [low, high]"));
            }
            range => range.map(|[low, high]| (low, high)),
        };
        let unit = entry.unit.map(|symbol| Unit::parse(&symbol)).transpose();
        Ok(Self { unit: unit.map_err(|error| format!("unit: {error}"))?, correction, valid })
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
        let corrected = match &self.correction {
            Correction::Linear { gain, offset } => converted * gain + offset,
            Correction::Polynomial(coefficients) => {
                coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * converted + coefficient)
            }
        };
        if !corrected.is_finite() {
            return Err(Flag::NotCalibrated);
        }
        Ok((corrected, self.unit.or(unit)))
    }

    /// Whether a corrected value is in the rule's `valid` range.
    pub fn is_valid(&self, value: f64) -> bool {
        self.valid.is_none_or(|(low, high)| (low..=high).contains(&value))
    }
}

#[cfg(test)]
mod tests;
