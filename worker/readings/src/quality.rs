//! Quality flags, and the physical limits of values.

use std::collections::BTreeSet;

use garenne_protocol::sensor::Unit;
use schemars::JsonSchema;
use serde::Serialize;
use strum::{EnumString, IntoStaticStr};

/// A reason to doubt a value.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema, EnumString, IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum Flag {
    /// The value is outside the calibration's `valid` range.
    OutOfRange,
    /// The value is physically impossible in its unit, such as below absolute zero or a humidity outside 0 to
    /// 100 %.
    Impossible,
    /// The calibration could not be applied: the unit measures another quantity, or the result is not finite.
    /// The value is as sent.
    NotCalibrated,
    /// The sender gave no time, or a time relative to now.
    TimeAssumed,
}

/// The flags of a value, in JSON a list of their names. The empty set of a good value allocates no memory.
pub type Quality = BTreeSet<Flag>;

/// Words in the name of a metric that is the difference of two values, which may be negative in every unit.
const DIFFERENCE: [&str; 6] = ["difference", "differential", "diff", "delta", "deviation", "change"];

/// Words in the name of a metric that is an absolute pressure. Other pressures are relative to that of the air, as a gauge
/// measures them, or their name does not say it.
const ABSOLUTE: [&str; 5] = ["absolute", "abs", "atmospheric", "barometric", "barometer"];

/// Whether a value of a metric is physically impossible in its unit. Units without known limits allow every value.
pub fn is_impossible(metric: &str, value: f64, unit: Unit) -> bool {
    let has_word = |words: &[&str]| {
        let mut parts = metric.split(|c: char| !c.is_alphanumeric());
        parts.any(|part| words.iter().any(|word| part.eq_ignore_ascii_case(word)))
    };
    let (low, high) = match unit.symbol() {
        "Cel" | "degC" | "°C" => (-273.15, f64::INFINITY),
        "degF" | "°F" => (-459.67, f64::INFINITY),
        "%RH" | "%EL" => (0.0, 100.0),
        "lat" => (-90.0, 90.0),
        "lon" => (-180.0, 180.0),
        "Pa" | "hPa" | "kPa" | "mbar" | "bar" | "psi" if !has_word(&ABSOLUTE) => return false,
        "K" | "Pa" | "hPa" | "kPa" | "mbar" | "bar" | "psi" | "lx" | "kg/m3" | "ug/m3" | "count" => {
            (0.0, f64::INFINITY)
        }
        _ => return false,
    };
    !(low..=high).contains(&value) && !has_word(&DIFFERENCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn impossible(metric: &str, value: f64, unit: &str) -> bool {
        is_impossible(metric, value, Unit::parse(unit).unwrap())
    }

    #[test]
    fn values_beyond_the_limits_of_their_unit_are_impossible() {
        for (unit, low, high) in
            [("Cel", -273.15, f64::MAX), ("K", 0.0, f64::MAX), ("%RH", 0.0, 100.0), ("lat", -90.0, 90.0)]
        {
            assert!(!impossible("m", low, unit) && !impossible("m", high, unit), "{unit}");
            assert!(impossible("m", low.next_down(), unit), "{unit}");
            assert_eq!(impossible("m", high.next_up(), unit), high < f64::MAX, "{unit}");
        }
        assert!(!impossible("m", -1e9, "m/s"));
    }

    #[test]
    fn only_an_absolute_pressure_cannot_be_negative() {
        for unit in ["Pa", "hPa", "kPa", "mbar", "bar", "psi"] {
            for metric in
                ["pressure", "gauge_pressure", "differential-pressure", "filter.dp", "absorber_pressure"]
            {
                assert!(!impossible(metric, -0.2, unit), "{metric} {unit}");
            }
            for metric in
                ["absolute_pressure", "pressure-abs", "Barometric Pressure", "hall/atmospheric.pressure"]
            {
                assert!(impossible(metric, -0.2, unit), "{metric} {unit}");
                assert!(!impossible(metric, 0.0, unit), "{metric} {unit}");
            }
        }
    }

    #[test]
    fn a_difference_may_be_negative_in_every_unit() {
        for (metric, unit) in [
            ("temperature_difference", "K"),
            ("delta_humidity", "%RH"),
            ("level.change", "count"),
            ("absolute_pressure_deviation", "hPa"),
        ] {
            assert!(!impossible(metric, -3.0, unit), "{metric}");
        }
        assert!(impossible("temperature", -3.0, "K"));
    }
}
