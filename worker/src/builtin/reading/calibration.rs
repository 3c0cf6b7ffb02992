//! How each device's values are corrected: a TOML file of rules.
//!
//! ```toml
//! [[calibration]]
//! device = "greenhouse-1"      # "*" or left out: every device that has no rule of its own
//! metric = "temperature"
//! unit   = "Cel"               # converted to this unit before anything else
//! gain   = 1.02                # value * gain + offset
//! offset = -0.3
//! valid  = [-40.0, 85.0]       # outside: flagged out-of-range, stored all the same
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

/// The rules of a file. Without one, values are stored as they come.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibration {
    by_device: HashMap<String, HashMap<String, Rule>>,
    for_all: HashMap<String, Rule>,
}

/// What is done to the values of one device's metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    unit: Option<Unit>,
    correction: Correction,
    /// Lowest and highest valid value, after correction.
    valid: Option<(f64, f64)>,
}

#[derive(Debug, Clone, PartialEq)]
enum Correction {
    Linear {
        gain: f64,
        offset: f64,
    },
    /// Coefficients from the constant term up.
    Polynomial(Vec<f64>),
}

/// Why a file of rules was not taken. One line.
#[derive(Debug, thiserror::Error)]
#[error("calibration file {}: {message}", .path.display())]
pub struct BadCalibration {
    /// The file.
    pub path: PathBuf,
    /// Which rule or line, which value, what is allowed.
    pub message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    calibration: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
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

/// More coefficients than any sensor's data sheet has.
const MOST_COEFFICIENTS: usize = 10;

impl Calibration {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or a rule is wrong; the first thing found.
    pub fn load(path: &Path) -> Result<Self, BadCalibration> {
        let bad = |message| BadCalibration { path: path.to_owned(), message };
        let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
        Self::parse(&text).map_err(bad)
    }

    /// Reads rules.
    ///
    /// # Errors
    /// Not TOML, or a rule is wrong: which one, which value, what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = parse_toml(text)?;
        let mut calibration = Self::default();
        for (index, entry) in file.calibration.into_iter().enumerate() {
            let place = format!("rule {} (device {:?}, metric {:?})", index + 1, entry.device, entry.metric);
            let (device, metric) = (entry.device.clone(), entry.metric.clone());
            let rule = Rule::check(entry).map_err(|message| format!("{place}: {message}"))?;
            let rules = match device.as_str() {
                "*" => &mut calibration.for_all,
                _ => calibration.by_device.entry(device).or_default(),
            };
            if rules.insert(metric, rule).is_some() {
                return Err(format!("{place}: there is a rule for these already"));
            }
        }
        Ok(calibration)
    }

    /// The rule for a device's metric: its own, else the one for every device.
    pub fn rule(&self, device: &str, metric: &str) -> Option<&Rule> {
        let own = || self.by_device.get(device)?.get(metric);
        let common = || self.for_all.get(metric);
        // Most fleets have none or few: an empty map is not worth a hash.
        (!self.by_device.is_empty())
            .then(own)
            .flatten()
            .or_else(|| (!self.for_all.is_empty()).then(common).flatten())
    }
}

impl Rule {
    fn check(entry: Entry) -> Result<Self, String> {
        let finite = |name: &str, number: f64| {
            if number.is_finite() {
                Ok(number)
            } else {
                Err(format!("{name}: {number} is not a finite number"))
            }
        };
        if entry.metric.is_empty() || entry.device.is_empty() {
            return Err("device and metric may not be empty; \"*\" is every device".to_owned());
        }
        let correction = match (entry.polynomial, entry.gain, entry.offset) {
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
                return Err("polynomial stands instead of gain and offset, not beside them".to_owned());
            }
            (Some(coefficients), None, None) => {
                if coefficients.is_empty() || coefficients.len() > MOST_COEFFICIENTS {
                    let count = coefficients.len();
                    return Err(format!(
                        "polynomial: {count} coefficients; 1 to {MOST_COEFFICIENTS} are allowed"
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
                return Err(format!("valid: [{low}, {high}] is no range; the lower end comes first"));
            }
            range => range.map(|[low, high]| (low, high)),
        };
        let unit = entry.unit.map(|symbol| Unit::parse(&symbol)).transpose();
        Ok(Self { unit: unit.map_err(|error| format!("unit: {error}"))?, correction, valid })
    }

    /// The value in the rule's unit, corrected. A reading without a unit is taken to be in the
    /// rule's already.
    ///
    /// # Errors
    /// [`Flag::NotCalibrated`] when the units measure different things or the result is not finite.
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

    /// Whether a corrected value is in the range that the rule calls valid.
    pub fn is_valid(&self, value: f64) -> bool {
        self.valid.is_none_or(|(low, high)| (low..=high).contains(&value))
    }
}

#[cfg(test)]
mod tests;
