//! A reading: one measured value of a device at a point in time.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{SentCounter, Timestamp, Unit};

/// A reading in its plain form. Every other form is converted to it.
///
/// As JSON `{"device","metric","value","unit","time"}`. `unit` is left out if unknown, and `counter` for other values than those of a counter; `time` is written as
/// RFC 3339 and read as RFC 3339 or Unix seconds.
///
/// [`readings_from`](super::readings_from) parses input from outside, with limits and errors that name the
/// record. `Deserialize` checks no limits: use it only for readings that were checked before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// The device that measured: 1 to 128 bytes, no control characters.
    #[cfg_attr(feature = "schemas", schemars(length(min = 1, max = 128)))]
    pub device: Arc<str>,
    /// The measured quantity: 1 to 128 bytes, no control characters.
    #[cfg_attr(feature = "schemas", schemars(length(min = 1, max = 128)))]
    pub metric: Arc<str>,
    /// The value in `unit`, a finite number.
    pub value: f64,
    /// The unit of `value`; absent if the sender gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// What the sender says of the cumulative counter that the value is of; absent for other values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter: Option<Box<SentCounter>>,
    /// The time of the measurement.
    pub time: Timestamp,
}

/// The namespace of [`Reading::identity`]: the version 5 UUID of "garenne.reading" under the nil UUID. Stored
/// ids depend on it, so it must never change.
const NAMESPACE: Uuid = Uuid::from_u128(0xed4c_5941_ded2_5e1f_b153_2f50_5a4f_0cca);

impl Reading {
    /// A task id derived from the reading's key alone (device, metric and time), so that a sender without own ids can repeat a request
    /// without a second effect. Readings that differ only in value or unit have the same identity.
    pub fn identity(&self) -> Uuid {
        let mut name = Vec::with_capacity(self.device.len() + self.metric.len() + 16);
        // The length makes the encoding unambiguous: ("ab", "c") differs from ("a", "bc").
        name.extend((self.device.len() as u64).to_be_bytes());
        name.extend(self.device.as_bytes());
        name.extend(self.metric.as_bytes());
        name.extend(self.time.as_micros().to_be_bytes());
        Uuid::new_v5(&NAMESPACE, &name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading() -> Reading {
        Reading {
            device: "bench-1".into(),
            metric: "temperature".into(),
            value: 21.5,
            unit: Unit::get("Cel"),
            counter: None,
            time: Timestamp::from_micros(1_763_600_000_500_000).unwrap(),
        }
    }

    #[test]
    fn json_round_trip_and_unix_seconds() {
        let json = serde_json::to_string(&reading()).unwrap();
        assert_eq!(
            json,
            r#"{"device":"bench-1","metric":"temperature","value":21.5,"unit":"Cel","time":"2025-11-20T00:53:20.5Z"}"#
        );
        assert_eq!(serde_json::from_str::<Reading>(&json).unwrap(), reading());
        let seconds = json.replace(r#""2025-11-20T00:53:20.5Z""#, "1763600000.5");
        assert_eq!(serde_json::from_str::<Reading>(&seconds).unwrap(), reading());
        let error = serde_json::from_str::<Reading>(&json.replace("Cel", "cel")).unwrap_err().to_string();
        assert!(error.starts_with(r#""cel" is not a SenML unit; the nearest is "Cel""#), "{error}");
    }

    #[test]
    fn identity_depends_on_the_key_only() {
        let one = reading();
        let valued = Reading { value: 99.0, unit: None, ..reading() };
        let shifted = Reading { device: "bench-1t".into(), metric: "emperature".into(), ..reading() };
        let later = Reading { time: one.time.plus_seconds(1e-6).unwrap(), ..reading() };
        assert_eq!(one.identity(), valued.identity());
        assert_eq!(one.identity().to_string(), "02039909-3330-5699-9566-bf2b5c9edb1f");
        assert_eq!(NAMESPACE, Uuid::new_v5(&Uuid::nil(), b"garenne.reading"));
        assert_ne!(one.identity(), shifted.identity());
        assert_ne!(one.identity(), later.identity());
    }
}
