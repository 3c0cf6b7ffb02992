//! Quality flags.

use std::collections::BTreeSet;

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
    /// The value is outside a `valid` range of the calibration file.
    OutOfRange,
    /// Nobody measured the value: it is physically impossible, such as a temperature below absolute zero or a humidity
    /// outside 0 to 100 %, or a code by which a sensor says that it has none, such as 65535.
    Impossible,
    /// The calibration could not be applied: the unit measures another quantity, or the result is not finite.
    /// The value is as sent.
    NotCalibrated,
    /// A counter at exactly zero: most often a device that has not read its meter yet.
    CounterZero,
    /// The sender gave no time, or a time relative to now.
    TimeAssumed,
    /// A person has corrected the value or its flags. The raw value is as sent.
    Corrected,
}

impl Flag {
    /// Whether it follows from the value, so that another value has other flags.
    pub fn concerns_value(self) -> bool {
        !matches!(self, Self::TimeAssumed | Self::Corrected)
    }
}

/// The flags of a value, in JSON a list of their names. The empty set of a good value allocates no memory.
pub type Quality = BTreeSet<Flag>;
