//! Calibration rules per device, metric and period, from a TOML file.
//!
//! ```toml
//! [[calibration]]
//! device  = "greenhouse-1"     # "*" or absent: every device without rules of its own
//! metric  = "temperature"
//! from    = "2026-03-01T00:00:00Z"    # readings from this time on; absent: from the first one
//! until   = "2026-09-01T00:00:00Z"    # and before this time; absent: without end
//! version = "2026-03 laboratory"      # absent: a hash of the rule
//! unit    = "Cel"              # values are converted to it first
//! gain    = 1.02               # value * gain + offset
//! offset  = -0.3
//! valid   = [-40.0, 85.0]      # other values are flagged out-of-range and stored
//!
//! [[calibration]]
//! metric       = "energy"
//! counter      = true          # a cumulative counter: its steps are consumption; absent: as the sender says
//! wraps_at     = 65536         # raw values begin again at zero here; absent: never
//! max_per_hour = 12.0          # the highest consumption of an hour, in the unit of the calibrated value
//!
//! [[calibration]]
//! device = "flow-7"
//! metric = "flow"
//! polynomial = [0.02, 0.98, 1.5e-4]   # 0.02 + 0.98 x + 0.00015 x², instead of gain and offset
//!
//! [[plausible]]
//! device = "ds18b20-*"
//! metric = "temperature"
//! unit   = "Cel"
//! none   = [85]                # codes that mean "no value" are flagged impossible
//! valid  = [-55.0, 125.0]      # other values are flagged out-of-range
//! shipped = true               # false: the shipped codes and limits are not applied
//! ```

use std::{collections::HashMap, path::Path, sync::Arc};

use garenne_common::config::parse_toml;
use garenne_protocol::sensor::{Counter, Record, SentCounter, Timestamp, Unit};
use serde::Deserialize;

use crate::{
    calibrated_reading::CalibratedReading,
    plausible::{Candidate, Plausible, PlausibleEntry},
    quality::{Flag, Quality},
    toml_file::{self, EVERY_DEVICE},
};

mod period;
mod rule;

pub use period::Period;
pub use rule::Rule;
use rule::RuleEntry;

/// The rules of a file. A value without a rule is stored as sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibration {
    /// By device and metric; the periods of a list do not overlap.
    rules: HashMap<String, HashMap<String, Vec<Rule>>>,
    plausible: Plausible,
}

/// A value after calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// The corrected value, in `unit`.
    pub value: f64,
    /// The unit of the rule, else that of the sender.
    pub unit: Option<Unit>,
    /// The flags that follow from the value and the rule.
    pub quality: Quality,
    /// The version of the rule. None if no rule applies, and the value is as sent.
    pub version: Option<Arc<str>>,
    /// How consumption follows from the values, if they are those of a counter.
    pub counter: Option<Counter>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CalibrationFile {
    #[serde(default)]
    calibration: Vec<RuleEntry>,
    #[serde(default)]
    plausible: Vec<PlausibleEntry>,
}

impl Calibration {
    /// Reads a calibration file. An error names the first problem.
    pub fn load(path: &Path) -> Result<Self, String> {
        toml_file::load("calibration file", path, Self::parse)
    }

    /// Parses rules in TOML. An error names the rule, the value, and the allowed values.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: CalibrationFile = parse_toml(text)?;
        let plausible = Plausible::from_entries(file.plausible)?;
        let mut calibration = Self { plausible, ..Self::default() };
        let mut numbers: HashMap<_, Vec<usize>> = HashMap::new();
        for (number, entry) in (1..).zip(file.calibration) {
            let position = format!("rule {number} (device {:?}, metric {:?})", entry.device, entry.metric);
            let (device, metric) = (entry.device.clone(), entry.metric.clone());
            let rule = Rule::from_entry(entry).map_err(|message| format!("{position}: {message}"))?;
            let numbers = numbers.entry((device.clone(), metric.clone())).or_default();
            let rules = calibration.rules.entry(device).or_default().entry(metric).or_default();
            for (other, number) in rules.iter().zip(&*numbers) {
                if let Some(both) = rule.period.overlap(other.period) {
                    return Err(format!("{position}: overlaps rule {number} {both}"));
                }
                if rule.version == other.version && !rule.corrects_as(other) {
                    let version = &rule.version;
                    return Err(format!(
                        "{position}: version {version:?} is that of rule {number}, which differs"
                    ));
                }
            }
            numbers.push(number);
            rules.push(rule);
        }
        Ok(calibration)
    }

    /// The rule for a device's metric at a time. A device that has rules of its own for the metric uses only these,
    /// and none between their periods. The others use the rules for every device.
    pub fn rule(&self, device: &str, metric: &str, time: Timestamp) -> Option<&Rule> {
        let of_device = |device: &str| self.rules.get(device)?.get(metric);
        let rules = of_device(device).or_else(|| of_device(EVERY_DEVICE))?;
        rules.iter().find(|rule| rule.period.contains(time))
    }

    /// Calibrates a value as sent: converts its unit, corrects it, and sets flags. `sent` is what the sender says of a
    /// counter; the rule may say otherwise.
    pub fn calibrate(
        &self,
        device: &str,
        metric: &str,
        time: Timestamp,
        raw: f64,
        raw_unit: Option<Unit>,
        sent: Option<SentCounter>,
    ) -> Calibrated {
        let mut quality = Quality::default();
        let (mut value, mut unit) = (raw, raw_unit);
        let rule = self.rule(device, metric, time);
        if let Some(rule) = rule {
            match rule.apply(raw, raw_unit) {
                Ok(corrected) => {
                    (value, unit) = corrected;
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
        let (given, stored, is_corrected) = ((raw, raw_unit), (value, unit), rule.is_some());
        quality.extend(self.plausible.flags(&Candidate { device, metric, raw: given, stored, is_corrected }));
        let sent_counter = sent.map(|sent| sent.counter());
        let counter = rule.map_or(sent_counter, |rule| rule.counter(raw_unit, sent_counter));
        // With a start time, zero is what the counter has counted since then.
        if counter.is_some() && raw == 0.0 && sent.is_none_or(|sent| sent.start.is_none()) {
            quality.insert(Flag::CounterZero);
        }
        Calibrated { value, unit, quality, version: rule.map(|rule| Arc::clone(&rule.version)), counter }
    }

    /// The flags of a value that is right as it is, such as one that a person states: nothing is corrected.
    pub fn flags(
        &self,
        device: &str,
        metric: &str,
        time: Timestamp,
        value: f64,
        unit: Option<Unit>,
    ) -> Quality {
        let stored = (value, unit);
        let candidate = Candidate { device, metric, raw: stored, stored, is_corrected: false };
        let mut quality = self.plausible.flags(&candidate);
        if self.rule(device, metric, time).is_some_and(|rule| !rule.is_valid(value)) {
            quality.insert(Flag::OutOfRange);
        }
        quality
    }

    /// The reading as it is stored.
    pub fn apply(&self, record: &Record) -> CalibratedReading {
        let reading = &record.reading;
        let sent_counter = reading.counter.as_deref().copied();
        let Calibrated { value, unit, mut quality, version, counter } = self.calibrate(
            &reading.device,
            &reading.metric,
            reading.time,
            reading.value,
            reading.unit,
            sent_counter,
        );
        if record.time_assumed {
            quality.insert(Flag::TimeAssumed);
        }
        CalibratedReading {
            device: reading.device.clone(),
            metric: reading.metric.clone(),
            time: reading.time,
            value,
            unit,
            raw: Some(reading.value),
            raw_unit: reading.unit.filter(|_| reading.unit != unit),
            sent_unit: reading.unit,
            calibration: version,
            quality,
            counter,
            sent_counter,
        }
    }
}

#[cfg(test)]
mod tests;
