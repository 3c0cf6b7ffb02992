//! One rule: the correction of a metric's values in a period.

use std::sync::Arc;

use garenne_protocol::sensor::{Counter, Unit};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::period::Period;
use crate::{
    calibrated_reading::NO_CALIBRATION,
    quality::Flag,
    toml_file::{EVERY_DEVICE, every_device, finite, range, unit},
};

/// Limit for the coefficients of a polynomial; sensor data sheets have fewer.
const MAX_COEFFICIENTS: usize = 10;

/// Limit for the bytes of a version, which is stored with every reading.
const MAX_VERSION: usize = 64;

/// The calibration of one device's metric in a period.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    pub(super) period: Period,
    /// Identifies the correction among those of the device's metric.
    pub(super) version: Arc<str>,
    unit: Option<Unit>,
    /// The coefficients of the correction in ascending order of their power, from the constant term.
    polynomial: Vec<f64>,
    /// The lowest and highest valid value, after correction.
    valid: Option<[f64; 2]>,
    /// Whether the values are those of a counter. None if the sender says so.
    is_counter: Option<bool>,
    /// `wraps_at` in the unit of the raw value, and `max_per_hour` in that of the corrected value.
    counter: Counter,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleEntry {
    #[serde(default = "every_device")]
    pub(super) device: String,
    pub(super) metric: String,
    from: Option<toml::Value>,
    until: Option<toml::Value>,
    version: Option<String>,
    unit: Option<String>,
    gain: Option<f64>,
    offset: Option<f64>,
    polynomial: Option<Vec<f64>>,
    valid: Option<[f64; 2]>,
    counter: Option<bool>,
    wraps_at: Option<f64>,
    max_per_hour: Option<f64>,
}

impl Rule {
    pub(super) fn from_entry(entry: RuleEntry) -> Result<Self, String> {
        if entry.metric.is_empty() || entry.device.is_empty() {
            return Err("device and metric must not be empty; \"*\" is every device".to_owned());
        }
        // Of two patterns for a device, it would not be clear which counts.
        if entry.metric.contains('*') || entry.device.contains('*') && entry.device != EVERY_DEVICE {
            return Err("a rule takes no patterns: it is for one metric, and for one device or for every device (\"*\")".to_owned());
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
        entry.valid.map(|valid| range("valid", valid)).transpose()?;
        let period = Period::parse(entry.from.as_ref(), entry.until.as_ref())?;
        let unit = unit(entry.unit.as_deref())?;
        let counter = Counter { wraps_at: entry.wraps_at, max_per_hour: entry.max_per_hour };
        counter.check_in_file(entry.counter)?;
        if entry.counter == Some(true) && !is_gain(&polynomial) {
            return Err("counter: only gain is allowed, without offset or polynomial".to_owned());
        }
        let version = match entry.version {
            Some(version) => checked_version(&version)?,
            None => hash(unit, &polynomial, entry.valid, entry.counter),
        };
        Ok(Self { period, version, unit, polynomial, valid: entry.valid, is_counter: entry.counter, counter })
    }

    /// The version that is stored with the readings that this rule applies to.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether every value becomes the same as with another rule.
    pub(super) fn corrects_as(&self, other: &Self) -> bool {
        (self.unit, &self.polynomial, self.valid, self.is_counter)
            == (other.unit, &other.polynomial, other.valid, other.is_counter)
    }

    /// How consumption follows from values that were sent in a unit, and of which the sender says `sent`; none if they are
    /// not those of a counter.
    pub(super) fn counter(&self, unit: Option<Unit>, sent: Option<Counter>) -> Option<Counter> {
        let corrected = |raw: Option<f64>| Some(self.apply(raw?, unit).ok()?.0);
        match self.is_counter {
            Some(true) => Some(Counter { wraps_at: corrected(self.counter.wraps_at), ..self.counter }),
            Some(false) => None,
            None => sent.filter(|_| is_gain(&self.polynomial)).map(|Counter { wraps_at, max_per_hour }| {
                Counter { wraps_at: corrected(wraps_at), max_per_hour: corrected(max_per_hour) }
            }),
        }
    }

    /// Converts a value to the rule's unit and corrects it. A value without a unit is taken to be in the rule's unit.
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

/// Whether a zero stays zero, so that a counter that restarts is one that restarts at zero.
fn is_gain(polynomial: &[f64]) -> bool {
    polynomial.iter().enumerate().all(|(power, coefficient)| power == 1 || *coefficient == 0.0)
}

fn checked_version(version: &str) -> Result<Arc<str>, String> {
    if version == NO_CALIBRATION {
        return Err(format!("version: {version:?} is stored with readings that no rule applies to"));
    }
    let length = version.len();
    if !(1..=MAX_VERSION).contains(&length) || version.chars().any(char::is_control) {
        return Err(format!(
            "version: {version:?} has {length} bytes; expected 1 to {MAX_VERSION}, without control characters"
        ));
    }
    Ok(version.into())
}

/// A version from everything that the result depends on, so not from the period: a rule that is prolonged keeps its
/// version, and so do the readings. Eight hexadecimal digits.
fn hash(
    unit: Option<Unit>,
    polynomial: &[f64],
    valid: Option<[f64; 2]>,
    is_counter: Option<bool>,
) -> Arc<str> {
    let mut hash = Sha256::new();
    hash.update(unit.map_or("", Unit::symbol));
    let valid = valid.as_ref().map_or(&[][..], |range| range.as_slice());
    for numbers in [polynomial, valid] {
        hash.update((numbers.len() as u64).to_be_bytes());
        for number in numbers {
            // -0.0 corrects as 0.0.
            hash.update((number + 0.0).to_bits().to_be_bytes());
        }
    }
    // The versions of rules for other values are as they were before there were counters.
    if let Some(is_counter) = is_counter {
        hash.update(if is_counter { "counter" } else { "no counter" });
    }
    let digest = hash.finalize();
    digest[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}
