//! What temperature and relative humidity say together.
//!
//! | metric | unit | formula |
//! | --- | --- | --- |
//! | `dew_point` | Cel | Magnus, Sonntag's 1990 constants over water |
//! | `absolute_humidity` | kg/m3 | the same vapour pressure, water vapour as an ideal gas |
//! | `heat_index` | Cel | US National Weather Service: Rothfusz regression with its adjustments |
//!
//! A pair is a device's temperature and humidity of one time in one task, or in the tasks of one pack. The units say which is
//! which, so that no name has to be guessed and Fahrenheit is not taken for Celsius: anything that
//! converts to `Cel`, and `%RH`. Where a device has several of a kind, the one whose metric is
//! `temperature` or `humidity` is meant; where none is called so, nothing is derived.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock};

use garenne_protocol::sensor::{Timestamp, Unit};

use super::Stored;

/// Lowest and highest temperature, in degrees Celsius, that Sonntag gives the Magnus constants for.
pub const MAGNUS_RANGE: (f64, f64) = (-45.0, 60.0);

/// Below this temperature, in degrees Fahrenheit, there is no heat to be felt and no index.
pub const HEAT_INDEX_FROM: f64 = 40.0;

/// Sonntag (1990), over water: 6.112 hPa, 17.62, 243.12 °C.
const MAGNUS: (f64, f64, f64) = (611.2, 17.62, 243.12);

/// Specific gas constant of water vapour, J/(kg K).
const WATER_VAPOUR: f64 = 461.5;

/// Dew point in degrees Celsius, of a temperature in degrees Celsius and a relative humidity in
/// percent. None outside [`MAGNUS_RANGE`], or unless 0 < humidity <= 100.
pub fn dew_point(temperature: f64, humidity: f64) -> Option<f64> {
    let (_, b, c) = MAGNUS;
    let gamma = (relative(temperature, humidity)?).ln() + b * temperature / (c + temperature);
    Some(c * gamma / (b - gamma)).filter(|point| point.is_finite())
}

/// Mass of water vapour in a cubic metre of air, in kilograms. None as for [`dew_point`].
pub fn absolute_humidity(temperature: f64, humidity: f64) -> Option<f64> {
    let (a, b, c) = MAGNUS;
    let pressure = relative(temperature, humidity)? * a * (b * temperature / (c + temperature)).exp();
    Some(pressure / (WATER_VAPOUR * (temperature + 273.15)))
}

/// The temperature, in degrees Celsius, that humidity makes it feel like. None below
/// [`HEAT_INDEX_FROM`], above 60 °C, or unless 0 <= humidity <= 100.
///
/// As the National Weather Service computes it: the mean of the temperature and Steadman's simple
/// formula; where that comes to 80 °F or more, Rothfusz' regression instead, lowered in dry and
/// raised in damp air. (Its web page can be read as averaging twice; its own calculator does not.)
pub fn heat_index(temperature: f64, humidity: f64) -> Option<f64> {
    let (t, h) = (temperature * 1.8 + 32.0, humidity);
    if !(HEAT_INDEX_FROM..=140.0).contains(&t) || !(0.0..=100.0).contains(&h) {
        return None;
    }
    let simple = 0.5 * (t + 61.0 + (t - 68.0) * 1.2 + h * 0.094);
    let index = if simple < 80.0 { simple } else { rothfusz(t, h) + adjustment(t, h) };
    Some((index - 32.0) / 1.8)
}

fn rothfusz(t: f64, h: f64) -> f64 {
    -42.379 + 2.049_015_23 * t + 10.143_331_27 * h
        - 0.224_755_41 * t * h
        - 0.006_837_83 * t * t
        - 0.054_817_17 * h * h
        + 0.001_228_74 * t * t * h
        + 0.000_852_82 * t * h * h
        - 0.000_001_99 * t * t * h * h
}

fn adjustment(t: f64, h: f64) -> f64 {
    if h < 13.0 && (80.0..=112.0).contains(&t) {
        -((13.0 - h) / 4.0) * ((17.0 - (t - 95.0).abs()) / 17.0).sqrt()
    } else if h > 85.0 && (80.0..=87.0).contains(&t) {
        (h - 85.0) / 10.0 * ((87.0 - t) / 5.0)
    } else {
        0.0
    }
}

fn relative(temperature: f64, humidity: f64) -> Option<f64> {
    let (low, high) = MAGNUS_RANGE;
    let inside = (low..=high).contains(&temperature) && humidity > 0.0 && humidity <= 100.0;
    inside.then_some(humidity / 100.0)
}

/// What a derived metric is called, measured in and made from.
struct Derivation {
    metric: Arc<str>,
    unit: Unit,
    formula: fn(f64, f64) -> Option<f64>,
}

static DERIVATIONS: LazyLock<[Derivation; 3]> = LazyLock::new(|| {
    let derivation = |metric: &str, symbol, formula| Derivation {
        metric: metric.into(),
        unit: Unit::get(symbol).expect("the registry holds it"),
        formula,
    };
    [
        derivation("dew_point", "Cel", dew_point as fn(f64, f64) -> Option<f64>),
        derivation("absolute_humidity", "kg/m3", absolute_humidity),
        derivation("heat_index", "Cel", heat_index),
    ]
});

static CELSIUS: LazyLock<Unit> = LazyLock::new(|| Unit::get("Cel").expect("the registry holds it"));
static RELATIVE_HUMIDITY: LazyLock<Unit> = LazyLock::new(|| Unit::get("%RH").expect("the registry holds it"));

/// The readings of one device and time that a pair is made of.
#[derive(Default)]
struct Place<'a> {
    temperature: Candidates<'a>,
    humidity: Candidates<'a>,
    /// Which of [`DERIVATIONS`] the device measured itself: its word stands.
    measured: [bool; 3],
}

/// The readings of one kind: the ones that bear the kind's name, and the others.
#[derive(Default)]
struct Candidates<'a> {
    named: Choice<'a>,
    other: Choice<'a>,
}

#[derive(Default, Clone, Copy)]
enum Choice<'a> {
    #[default]
    None,
    /// The reading, and its place among those looked at.
    One(usize, &'a Stored),
    Several,
}

impl<'a> Choice<'a> {
    fn add(&mut self, place: usize, reading: &'a Stored) {
        *self = match *self {
            Self::None => Self::One(place, reading),
            // The same reading sent twice is still one.
            Self::One(_, first) if first.metric == reading.metric && first.value == reading.value => *self,
            Self::One(..) | Self::Several => Self::Several,
        };
    }
}

impl<'a> Candidates<'a> {
    fn add(&mut self, place: usize, reading: &'a Stored, name: &str) {
        if &*reading.metric == name { &mut self.named } else { &mut self.other }.add(place, reading);
    }

    fn chosen(&self) -> Option<(usize, &'a Stored)> {
        match (self.named, self.other) {
            (Choice::One(place, reading), _) | (Choice::None, Choice::One(place, reading)) => {
                Some((place, reading))
            }
            _ => None,
        }
    }
}

/// A derived value, and the places of the readings that it was made from.
pub(super) struct Derived {
    pub(super) value: Stored,
    pub(super) temperature: usize,
    pub(super) humidity: usize,
}

/// Whether anything is ever derived from a reading.
pub(super) fn takes_part(reading: &Stored) -> bool {
    reading.unit.is_some_and(|unit| unit == *RELATIVE_HUMIDITY || unit.converts_to(*CELSIUS))
}

/// Everything that can be derived from the readings of one task, in their order.
pub(super) fn all(readings: &[Stored]) -> Vec<Stored> {
    pairs(readings).into_iter().map(|derived| derived.value).collect()
}

/// The same, with what each value was made from.
pub(super) fn pairs(readings: &[Stored]) -> Vec<Derived> {
    // Most tasks are one reading.
    if readings.len() < 2 {
        return Vec::new();
    }
    let mut places: Vec<Place<'_>> = Vec::new();
    let mut index: HashMap<(&str, Timestamp), usize> = HashMap::new();
    for (place, reading) in readings.iter().enumerate() {
        let Some(unit) = reading.unit else { continue };
        let derivation = DERIVATIONS.iter().position(|derivation| derivation.metric == reading.metric);
        let is_humidity = unit == *RELATIVE_HUMIDITY;
        if derivation.is_none() && !is_humidity && !unit.converts_to(*CELSIUS) {
            continue;
        }
        let at = match index.entry((&*reading.device, reading.time)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                places.push(Place::default());
                *new.insert(places.len() - 1)
            }
        };
        match derivation {
            Some(derivation) => places[at].measured[derivation] = true,
            None if !reading.quality.is_usable() => {}
            None if is_humidity => places[at].humidity.add(place, reading, "humidity"),
            None => places[at].temperature.add(place, reading, "temperature"),
        }
    }
    let pairs = places
        .iter()
        .filter_map(|place| Some((place.temperature.chosen()?, place.humidity.chosen()?, place.measured)));
    let mut derived = Vec::new();
    for ((at, temperature), (damp_at, humidity), measured) in pairs {
        let celsius = temperature.unit.and_then(|unit| unit.convert(temperature.value, *CELSIUS).ok());
        let Some(celsius) = celsius else { continue };
        for (derivation, is_measured) in DERIVATIONS.iter().zip(measured) {
            let value = (derivation.formula)(celsius, humidity.value).filter(|_| !is_measured);
            let stored = |value| Stored {
                device: temperature.device.clone(),
                metric: derivation.metric.clone(),
                time: temperature.time,
                value,
                unit: Some(derivation.unit),
                raw: None,
                raw_unit: None,
                quality: temperature.quality.with(humidity.quality),
            };
            derived.extend(value.map(|value| Derived {
                value: stored(value),
                temperature: at,
                humidity: damp_at,
            }));
        }
    }
    derived
}

#[cfg(test)]
mod tests;
