//! A reading as it is stored.

use std::sync::Arc;

use garenne::handler::ReadingRow;
use garenne_protocol::sensor::{Timestamp, Unit};
use schemars::JsonSchema;
use serde::Serialize;

use super::quality::{Flag, Quality};

/// A reading as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct StoredReading {
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
    /// Quality flags; empty for a good value.
    pub quality: Quality,
}

impl StoredReading {
    /// Whether the value itself is not in doubt. [`Flag::TimeAssumed`] concerns its time only.
    pub fn is_usable(&self) -> bool {
        self.quality.iter().all(|flag| *flag == Flag::TimeAssumed)
    }

    /// The row of the table of readings. `partner` is that of [`ReadingRow`].
    pub(super) fn row(&self, partner: Option<(Arc<str>, f64)>) -> ReadingRow {
        ReadingRow {
            device: Arc::clone(&self.device),
            metric: Arc::clone(&self.metric),
            time: self.time.into(),
            value: self.value,
            unit: self.unit.map(|unit| unit.symbol()),
            raw: self.raw,
            quality: self.quality.iter().map(Into::into).collect(),
            partner,
        }
    }
}
