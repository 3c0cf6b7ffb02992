//! Which values nobody measured: the shipped table, and what a calibration file says of a device or a metric.

use garenne_common::pattern::NamePattern;
use garenne_protocol::sensor::{Unit, is_code};
use serde::Deserialize;

use crate::{
    quality::{Flag, Quality},
    toml_file::{every_device, finite, range, unit},
};

mod shipped;

/// Limits of a file. Each reading is compared with every entry.
const MAX_ENTRIES: usize = 1_000;
const MAX_CODES: usize = 100;

/// The entries `[[plausible]]` of a calibration file, in their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Plausible(Vec<Entry>);

/// What an entry says of the devices and metrics that it stands for.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    device: NamePattern,
    metric: NamePattern,
    /// The unit of `none` and `valid`. Without one, numbers are compared in the unit that they have.
    unit: Option<Unit>,
    none: Option<Vec<f64>>,
    valid: Option<[f64; 2]>,
    shipped: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlausibleEntry {
    #[serde(default = "every_device")]
    device: String,
    metric: String,
    unit: Option<String>,
    none: Option<Vec<f64>>,
    valid: Option<[f64; 2]>,
    shipped: Option<bool>,
}

/// A value as it was sent and as it is stored.
pub(crate) struct Candidate<'a> {
    pub(crate) device: &'a str,
    pub(crate) metric: &'a str,
    pub(crate) raw: (f64, Option<Unit>),
    pub(crate) stored: (f64, Option<Unit>),
    /// Whether `stored` was computed from `raw` by a rule of the calibration.
    pub(crate) is_corrected: bool,
}

impl Plausible {
    /// Checks the entries of a file. An error names the entry, the field, the limit and the value.
    pub(crate) fn from_entries(entries: Vec<PlausibleEntry>) -> Result<Self, String> {
        if entries.len() > MAX_ENTRIES {
            return Err(format!("plausible: {} entries; at most {MAX_ENTRIES}", entries.len()));
        }
        let entries = (1..).zip(entries).map(|(number, entry)| {
            let position =
                format!("plausible {number} (device {:?}, metric {:?})", entry.device, entry.metric);
            Entry::new(entry).map_err(|message| format!("{position}: {message}"))
        });
        entries.collect::<Result<_, _>>().map(Self)
    }

    /// The flags of a value that nobody measured. Of several entries for it, the last one that has a field counts.
    pub(crate) fn flags(&self, value: &Candidate<'_>) -> Quality {
        let mut quality = Quality::default();
        let entries = || self.0.iter().rev().filter(|entry| entry.applies_to(value));
        let is_shipped = entries().find_map(|entry| entry.shipped).unwrap_or(true);
        let codes = entries().find(|entry| entry.none.is_some());
        if codes.is_some_and(|entry| entry.is_no_value(value.raw)) || is_shipped && value.is_impossible() {
            quality.insert(Flag::Impossible);
        }
        if entries().find(|entry| entry.valid.is_some()).is_some_and(|entry| !entry.is_valid(value.stored)) {
            quality.insert(Flag::OutOfRange);
        }
        quality
    }
}

impl Entry {
    fn new(entry: PlausibleEntry) -> Result<Self, String> {
        let PlausibleEntry { device, metric, unit: symbol, none, valid, shipped } = entry;
        let pattern =
            |field: &str, text: &str| NamePattern::parse(text).map_err(|error| format!("{field}: {error}"));
        if let Some(codes) = &none {
            if codes.len() > MAX_CODES {
                return Err(format!("none: {} numbers; at most {MAX_CODES}", codes.len()));
            }
            codes.iter().try_for_each(|code| finite("none", *code).map(drop))?;
        }
        if none.is_none() && valid.is_none() && shipped.is_none() {
            return Err("expected none, valid or shipped".to_owned());
        }
        Ok(Self {
            device: pattern("device", &device)?,
            metric: pattern("metric", &metric)?,
            unit: unit(symbol.as_deref())?,
            none,
            valid: valid.map(|valid| range("valid", valid)).transpose()?,
            shipped,
        })
    }

    fn applies_to(&self, value: &Candidate<'_>) -> bool {
        self.device.matches(value.device) && self.metric.matches(value.metric)
    }

    /// A number in the unit of the entry. None if it measures something else.
    fn converted(&self, (number, unit): (f64, Option<Unit>)) -> Option<f64> {
        match (unit, self.unit) {
            (Some(from), Some(to)) => from.convert(number, to).ok(),
            _ => Some(number),
        }
    }

    fn is_no_value(&self, raw: (f64, Option<Unit>)) -> bool {
        let raw = self.converted(raw);
        self.none.iter().flatten().any(|code| raw.is_some_and(|raw| is_code(raw, *code)))
    }

    fn is_valid(&self, stored: (f64, Option<Unit>)) -> bool {
        let value = self.converted(stored);
        self.valid.is_none_or(|[low, high]| value.is_none_or(|value| (low..=high).contains(&value)))
    }
}

impl Candidate<'_> {
    /// Whether the shipped table says that nobody measured the value.
    fn is_impossible(&self) -> bool {
        let &Self { metric, raw: (raw, raw_unit), stored: (value, unit), is_corrected, .. } = self;
        // A number without a unit that a rule corrects may be of another scale: -127 may be -1.27 °C. An end of the
        // 16-bit numbers is a code in every scale.
        let has_scale = raw_unit.is_some() || !is_corrected || raw.abs() >= 32_767.0;
        has_scale && shipped::is_no_value(metric, raw, raw_unit.or(unit))
            || is_corrected && shipped::is_no_value(metric, value, unit)
            || unit.is_some_and(|unit| shipped::is_impossible(metric, value, unit))
    }
}

#[cfg(test)]
mod tests;
