//! One measurement: a device, what it measured, the number, and when.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Timestamp, Unit};

/// The plain form of a reading, and what every other form becomes.
///
/// As JSON `{"device","metric","value","unit","time"}`; `unit` is left out when unknown, `time` is
/// RFC 3339 when written and may be Unix seconds when read.
///
/// [`readings_from`](super::readings_from) is how bytes become readings, with limits and errors
/// that name the record; `Deserialize` is for readings that were checked before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// Who measured: 1 to 128 bytes, no control characters.
    #[schemars(length(min = 1, max = 128))]
    pub device: Arc<str>,
    /// What was measured: 1 to 128 bytes, no control characters.
    #[schemars(length(min = 1, max = 128))]
    pub metric: Arc<str>,
    /// How much, in `unit`. Finite.
    pub value: f64,
    /// The unit of `value`; none when the sender gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// When it was measured.
    pub time: Timestamp,
}

/// What makes two readings the same one. Ordered by device, metric, time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadingKey {
    /// [`Reading::device`].
    pub device: Arc<str>,
    /// [`Reading::metric`].
    pub metric: Arc<str>,
    /// [`Reading::time`].
    pub time: Timestamp,
}

/// The namespace of [`Reading::identity`]: the version 5 UUID of "garenne.reading" under the nil
/// UUID. It is part of what is stored, so it never changes.
const NAMESPACE: Uuid = Uuid::from_u128(0xed4c_5941_ded2_5e1f_b153_2f50_5a4f_0cca);

impl Reading {
    /// What this reading is stored under: same device, metric and time with the same value is the
    /// same reading sent twice.
    pub fn key(&self) -> ReadingKey {
        ReadingKey { device: self.device.clone(), metric: self.metric.clone(), time: self.time }
    }

    /// A task id that the reading's key alone decides, so that a sender that gave none may repeat
    /// a request without a second effect. Two readings that differ in value only share it.
    pub fn identity(&self) -> Uuid {
        let mut name = Vec::with_capacity(self.device.len() + self.metric.len() + 16);
        // The lengths keep ("ab", "c") apart from ("a", "bc").
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
            time: Timestamp::from_micros(1_763_600_000_500_000).unwrap(),
        }
    }

    #[test]
    fn json_out_and_in() {
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
    fn identity_is_the_key_and_nothing_else() {
        let one = reading();
        let valued = Reading { value: 99.0, unit: None, ..reading() };
        let shifted = Reading { device: "bench-1t".into(), metric: "emperature".into(), ..reading() };
        let later = Reading { time: one.time.plus_seconds(1e-6).unwrap(), ..reading() };
        assert_eq!(one.identity(), valued.identity());
        assert_eq!(one.identity().to_string(), "02039909-3330-5699-9566-bf2b5c9edb1f");
        assert_eq!(NAMESPACE, Uuid::new_v5(&Uuid::nil(), b"garenne.reading"));
        assert_ne!(one.identity(), shifted.identity());
        assert_ne!(one.identity(), later.identity());
        assert_ne!(one.key(), later.key());
    }

    #[test]
    fn schema_names_every_field() {
        let schema = serde_json::to_value(schemars::schema_for!(Reading)).unwrap();
        assert_eq!(schema["required"], serde_json::json!(["device", "metric", "value", "time"]));
        assert_eq!(schema["properties"]["device"]["maxLength"], 128);
    }
}
