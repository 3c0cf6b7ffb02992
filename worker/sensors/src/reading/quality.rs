//! Quality flags, and the physical limits of values.

use std::borrow::Cow;
use std::fmt;

use garenne_protocol::sensor::Unit;
use serde::{Serialize, Serializer};
use strum::{IntoStaticStr, VariantArray};

/// A reason to doubt a value. Its name in results is in kebab case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
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

impl Flag {
    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// A set of flags, in JSON a list of their names. A bit set, because every reading has one.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Quality(u16);

impl Quality {
    /// Adds a flag.
    pub const fn set(&mut self, flag: Flag) {
        self.0 |= flag.bit();
    }

    /// Whether the set contains a flag.
    pub const fn has(self, flag: Flag) -> bool {
        self.0 & flag.bit() != 0
    }

    /// Whether the value itself is not in doubt. [`Flag::TimeAssumed`] concerns its time only.
    pub const fn is_usable(self) -> bool {
        self.0 & !Flag::TimeAssumed.bit() == 0
    }

    /// The union of two sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The flags in the set, in the order of their definition.
    pub fn iter(self) -> impl Iterator<Item = &'static Flag> {
        Flag::VARIANTS.iter().filter(move |flag| self.has(**flag))
    }
}

impl fmt::Debug for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Serialize for Quality {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(<&str>::from))
    }
}

impl schemars::JsonSchema for Quality {
    fn schema_name() -> Cow<'static, str> {
        "Quality".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Quality flags of the value; empty for a good one.",
            "type": "array",
            "uniqueItems": true,
            "items": { "type": "string", "enum": Flag::VARIANTS.iter().map(<&str>::from).collect::<Vec<_>>() }
        })
    }
}

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
