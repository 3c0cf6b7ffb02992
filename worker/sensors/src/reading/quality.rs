//! Quality flags, and the physical limits of values.

use std::collections::BTreeSet;

use garenne_protocol::sensor::Unit;
use schemars::JsonSchema;
use serde::Serialize;
use strum::IntoStaticStr;

/// A reason to doubt a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema, IntoStaticStr)]
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

/// Whether a value is physically impossible in a unit. Units without known limits allow every value.
pub fn is_impossible(value: f64, unit: Unit) -> bool {
    let (low, high) = match unit.symbol() {
        "Cel" | "degC" | "°C" => (-273.15, f64::INFINITY),
        "degF" | "°F" => (-459.67, f64::INFINITY),
        "%RH" | "%EL" => (0.0, 100.0),
        "lat" => (-90.0, 90.0),
        "lon" => (-180.0, 180.0),
        "K" | "Pa" | "hPa" | "kPa" | "mbar" | "bar" | "lx" | "kg/m3" | "ug/m3" | "count" => {
            (0.0, f64::INFINITY)
        }
        _ => return false,
    };
    !(low..=high).contains(&value)
}
