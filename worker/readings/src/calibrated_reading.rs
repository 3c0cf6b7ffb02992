//! A reading after its calibration, and a derived one.

use std::sync::Arc;

use garenne_protocol::sensor::{Counter, SentCounter, Timestamp, Unit};
use schemars::JsonSchema;
use serde::Serialize;

use crate::quality::Quality;

/// The stored version of a measured reading that no calibration rule applies to.
pub const NO_CALIBRATION: &str = "none";

/// A reading after its calibration, or a value derived from readings.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CalibratedReading {
    /// The device that measured it.
    pub device: Arc<str>,
    /// The metric, measured or derived.
    pub metric: Arc<str>,
    /// The time of the measurement.
    pub time: Timestamp,
    /// The calibrated value, in `unit`.
    pub value: f64,
    /// The unit of `value`: that of the calibration, else that of the sender, else null.
    pub unit: Option<Unit>,
    /// The value as sent; null for a derived one.
    pub raw: Option<f64>,
    /// The unit of `raw`, if it differs from `unit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_unit: Option<Unit>,
    /// The unit that the sender gave for `raw`. With `raw` it is what makes a reading the same as a stored one, whatever
    /// the calibration makes of it.
    #[serde(skip)]
    pub sent_unit: Option<Unit>,
    /// The version of the calibration rule that was applied; absent if the value is as sent, or derived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Arc<str>>,
    /// Quality flags; empty for a good value.
    pub quality: Quality,
    /// How consumption follows from the values, if they are those of a cumulative counter.
    #[serde(skip)]
    pub counter: Option<Counter>,
    /// What the sender says of the counter.
    #[serde(skip)]
    pub sent_counter: Option<SentCounter>,
}

impl CalibratedReading {
    /// Whether the value itself is not in doubt.
    pub fn is_usable(&self) -> bool {
        !self.quality.iter().any(|flag| flag.concerns_value())
    }
}
