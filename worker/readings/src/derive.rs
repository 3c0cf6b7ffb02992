//! Derives metrics from temperature and relative humidity.
//!
//! | metric | unit | formula |
//! | --- | --- | --- |
//! | `dew_point` | Cel | Magnus, Sonntag's 1990 constants over water |
//! | `absolute_humidity` | kg/m3 | the same vapour pressure, water vapour as an ideal gas |
//! | `heat_index` | Cel | US National Weather Service: Rothfusz regression with its adjustments |
//!
//! A pair is a temperature and a humidity of one device and time, in one task or in the tasks of one batch. The
//! unit decides which is which: a temperature converts to `Cel`, a humidity is in `%RH`. If a device has several
//! of a kind, the one whose metric is `temperature` or `humidity` is used. If none has that name, nothing is
//! derived.

use std::sync::{Arc, LazyLock};

use garenne_protocol::sensor::Unit;

use crate::calibrated_reading::CalibratedReading;

/// The lowest and highest temperature, in degrees Celsius, for which Sonntag gives the Magnus constants.
pub const MAGNUS_RANGE: (f64, f64) = (-45.0, 60.0);

/// The lowest temperature with a heat index, in degrees Fahrenheit.
pub const MIN_HEAT_INDEX_FAHRENHEIT: f64 = 40.0;

/// The Magnus constants over water (Sonntag 1990): 611.2 Pa, 17.62, 243.12 °C.
const MAGNUS: (f64, f64, f64) = (611.2, 17.62, 243.12);

/// The specific gas constant of water vapour, in J/(kg K).
const WATER_VAPOUR_GAS_CONSTANT: f64 = 461.5;

/// The dew point in degrees Celsius, of a temperature in degrees Celsius and a relative humidity in percent
/// (Magnus formula). None if the temperature is outside [`MAGNUS_RANGE`], or unless 0 < humidity <= 100.
pub fn dew_point(temperature: f64, humidity: f64) -> Option<f64> {
    let (_, b, c) = MAGNUS;
    let gamma = humidity_fraction(temperature, humidity)?.ln() + b * temperature / (c + temperature);
    Some(c * gamma / (b - gamma)).filter(|point| point.is_finite())
}

/// The mass of water vapour per volume of air, in kg/m³, of a temperature in degrees Celsius and a relative
/// humidity in percent. None as for [`dew_point`].
pub fn absolute_humidity(temperature: f64, humidity: f64) -> Option<f64> {
    let (a, b, c) = MAGNUS;
    let pressure =
        humidity_fraction(temperature, humidity)? * a * (b * temperature / (c + temperature)).exp();
    Some(pressure / (WATER_VAPOUR_GAS_CONSTANT * (temperature + 273.15)))
}

/// The heat index (perceived temperature) in degrees Celsius, of a temperature in degrees Celsius and a relative
/// humidity in percent. None below
/// [`MIN_HEAT_INDEX_FAHRENHEIT`], above 60 °C, or unless 0 <= humidity <= 100.
///
/// Computed as the US National Weather Service does: the mean of the temperature and Steadman's simple formula,
/// or, if that is 80 °F or more, Rothfusz' regression, lowered in dry and raised in humid air. Its web page can be
/// read as averaging twice; its calculator does not.
pub fn heat_index(temperature: f64, humidity: f64) -> Option<f64> {
    let (t, h) = (temperature * 1.8 + 32.0, humidity);
    if !(MIN_HEAT_INDEX_FAHRENHEIT..=140.0).contains(&t) || !(0.0..=100.0).contains(&h) {
        return None;
    }
    let simple = 0.5 * (t + 61.0 + (t - 68.0) * 1.2 + h * 0.094);
    let index = if simple < 80.0 { simple } else { rothfusz(t, h) + adjustment(t, h) };
    Some((index - 32.0) / 1.8)
}

/// Rothfusz' regression, of degrees Fahrenheit and percent.
fn rothfusz(t: f64, h: f64) -> f64 {
    -42.379 + 2.049_015_23 * t + 10.143_331_27 * h
        - 0.224_755_41 * t * h
        - 0.006_837_83 * t * t
        - 0.054_817_17 * h * h
        + 0.001_228_74 * t * t * h
        + 0.000_852_82 * t * h * h
        - 0.000_001_99 * t * t * h * h
}

/// The adjustment for dry and for humid air.
fn adjustment(t: f64, h: f64) -> f64 {
    if h < 13.0 && (80.0..=112.0).contains(&t) {
        -((13.0 - h) / 4.0) * ((17.0 - (t - 95.0).abs()) / 17.0).sqrt()
    } else if h > 85.0 && (80.0..=87.0).contains(&t) {
        (h - 85.0) / 10.0 * ((87.0 - t) / 5.0)
    } else {
        0.0
    }
}

/// The relative humidity as a fraction, if the Magnus formula applies.
fn humidity_fraction(temperature: f64, humidity: f64) -> Option<f64> {
    let (low, high) = MAGNUS_RANGE;
    let inside = (low..=high).contains(&temperature) && humidity > 0.0 && humidity <= 100.0;
    inside.then_some(humidity / 100.0)
}

/// A derived metric.
struct Derivation {
    metric: Arc<str>,
    unit: Unit,
    formula: fn(f64, f64) -> Option<f64>,
}

static DERIVATIONS: LazyLock<[Derivation; 3]> = LazyLock::new(|| {
    let derivation = |metric: &str, symbol, formula| Derivation {
        metric: metric.into(),
        unit: Unit::get(symbol).expect("a registered unit"),
        formula,
    };
    [
        derivation("dew_point", "Cel", dew_point as fn(f64, f64) -> Option<f64>),
        derivation("absolute_humidity", "kg/m3", absolute_humidity),
        derivation("heat_index", "Cel", heat_index),
    ]
});

static CELSIUS: LazyLock<Unit> = LazyLock::new(|| Unit::get("Cel").expect("a registered unit"));
static RELATIVE_HUMIDITY: LazyLock<Unit> = LazyLock::new(|| Unit::get("%RH").expect("a registered unit"));

/// The use of a reading.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Temperature,
    Humidity,
    /// The device measured a metric of [`DERIVATIONS`] itself. It is not derived.
    Measured,
}

fn role(reading: &CalibratedReading) -> Option<Role> {
    let unit = reading.unit?;
    if is_derived(&reading.metric) {
        Some(Role::Measured)
    } else if unit == *RELATIVE_HUMIDITY {
        Some(Role::Humidity)
    } else {
        unit.converts_to(*CELSIUS).then_some(Role::Temperature)
    }
}

/// A derived value, and the indices of the readings from which it was derived.
pub struct Derived {
    /// The value.
    pub value: CalibratedReading,
    /// The index of the temperature.
    pub temperature: usize,
    /// The index of the humidity.
    pub humidity: usize,
}

impl Derived {
    /// Metrics and values of the readings that it was derived from.
    pub fn inputs(&self, readings: &[CalibratedReading]) -> [(Arc<str>, f64); 2] {
        [self.temperature, self.humidity]
            .map(|index| (Arc::clone(&readings[index].metric), readings[index].value))
    }
}

/// Whether the reading is a temperature or a humidity.
pub fn is_input(reading: &CalibratedReading) -> bool {
    reading.unit.is_some_and(is_input_unit)
}

/// Whether the unit is that of a temperature or a humidity.
pub fn is_input_unit(unit: Unit) -> bool {
    unit == *RELATIVE_HUMIDITY || unit.converts_to(*CELSIUS)
}

/// Whether the metric is one of those that are derived.
pub fn is_derived(metric: &str) -> bool {
    metrics().any(|derived| derived == metric)
}

/// The metrics that are derived.
pub fn metrics() -> impl Iterator<Item = &'static str> {
    DERIVATIONS.iter().map(|derivation| &*derivation.metric)
}

/// All values that can be derived from the readings, in their order.
pub fn values(readings: &[CalibratedReading]) -> Vec<CalibratedReading> {
    values_with_inputs(readings).into_iter().map(|derived| derived.value).collect()
}

/// The same, with the inputs of each value.
pub fn values_with_inputs(readings: &[CalibratedReading]) -> Vec<Derived> {
    // Most tasks have one reading.
    if readings.len() < 2 {
        return Vec::new();
    }
    let place = |(index, _): &(usize, Role)| (&*readings[*index].device, readings[*index].time);
    let mut inputs: Vec<(usize, Role)> =
        readings.iter().enumerate().filter_map(|(index, reading)| Some((index, role(reading)?))).collect();
    inputs.sort_by_key(place);
    let mut groups: Vec<_> = inputs.chunk_by(|one, other| place(one) == place(other)).collect();
    groups.sort_by_key(|group| group[0].0);
    let mut derived = Vec::new();
    for group in groups {
        let temperature = choose(readings, group, Role::Temperature, "temperature");
        let Some((temperature, humidity)) =
            temperature.zip(choose(readings, group, Role::Humidity, "humidity"))
        else {
            continue;
        };
        let (warm, humid) = (&readings[temperature], &readings[humidity]);
        let celsius = warm.unit.and_then(|unit| unit.convert(warm.value, *CELSIUS).ok());
        let Some(celsius) = celsius else { continue };
        for Derivation { metric, unit, formula } in &*DERIVATIONS {
            let is_measured = group.iter().any(|(index, _)| readings[*index].metric == *metric);
            let Some(value) = formula(celsius, humid.value).filter(|_| !is_measured) else { continue };
            let value = CalibratedReading {
                device: warm.device.clone(),
                metric: metric.clone(),
                time: warm.time,
                value,
                unit: Some(*unit),
                raw: None,
                raw_unit: None,
                sent_unit: None,
                calibration: None,
                quality: &warm.quality | &humid.quality,
                counter: None,
                sent_counter: None,
            };
            derived.push(Derived { value, temperature, humidity });
        }
    }
    derived
}

/// The index of the usable reading of a role: that whose metric is `name`, else the only one. None if there are
/// several; repetitions of one reading are not.
fn choose(
    readings: &[CalibratedReading],
    group: &[(usize, Role)],
    wanted: Role,
    name: &str,
) -> Option<usize> {
    let usable =
        |(index, role): &(usize, Role)| (*role == wanted && readings[*index].is_usable()).then_some(*index);
    let candidates = || group.iter().filter_map(usable);
    let is_named = |index: &usize| &*readings[*index].metric == name;
    let first = candidates().find(is_named).or_else(|| candidates().next())?;
    let is_same = |index: usize| {
        (&readings[index].metric, readings[index].value) == (&readings[first].metric, readings[first].value)
    };
    let is_other = |index: usize| is_named(&index) == is_named(&first) && !is_same(index);
    (!candidates().any(is_other)).then_some(first)
}

#[cfg(test)]
mod tests;
