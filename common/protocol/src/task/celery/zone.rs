//! The times in the headers of calls: ISO 8601, with an offset or without.

use std::str::FromStr;

use amq_protocol::types::{AMQPValue, FieldTable};
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use thiserror::Error;

use super::{super::header, BadCall};

/// The zone of times that have no offset, such as `Europe/Paris`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CeleryZone(TimeZone);

/// A name that no time zone has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected the name of a time zone, such as \"UTC\" or \"Europe/Paris\"")]
pub struct BadZone;

impl Default for CeleryZone {
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

impl FromStr for CeleryZone {
    type Err = BadZone;

    fn from_str(name: &str) -> Result<Self, BadZone> {
        TimeZone::get(name).map(Self).map_err(|_| BadZone)
    }
}

impl Serialize for CeleryZone {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.iana_name().unwrap_or("UTC"))
    }
}

impl<'de> Deserialize<'de> for CeleryZone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl CeleryZone {
    /// Whether this program is built with what reads times.
    pub const IS_SUPPORTED: bool = true;

    /// The time in the header `name`, in milliseconds since 1970; 0 for an earlier one.
    pub(super) fn header_ms(&self, headers: &Option<FieldTable>, name: &str) -> Result<Option<i64>, BadCall> {
        let Some(value) = header::get(headers, name).filter(|value| **value != AMQPValue::Void) else {
            return Ok(None);
        };
        let text = header::text(value);
        match text.as_deref().and_then(|text| self.ms(text)) {
            Some(ms) => Ok(Some(ms.max(0))),
            None => {
                let text = text.map(|text| format!(": {text:?}")).unwrap_or_default();
                Err(BadCall(format!("header {name} is no time in ISO 8601{text}")))
            }
        }
    }

    fn ms(&self, text: &str) -> Option<i64> {
        // A time without an offset is no timestamp; read as a civil time, one with an offset would lose it.
        let aware = text.parse::<Timestamp>().ok();
        let naive = || self.0.to_timestamp(text.parse::<DateTime>().ok()?).ok();
        aware.or_else(naive).map(Timestamp::as_millisecond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_without_an_offset_is_in_the_zone() {
        let paris: CeleryZone = "Europe/Paris".parse().unwrap();
        for (text, in_utc, in_paris) in [
            ("1970-01-02T00:00:00", Some(86_400_000), Some(82_800_000)),
            ("1970-01-02T00:00:00.250000", Some(86_400_250), Some(82_800_250)),
            ("1970-01-02T00:00:00+00:00", Some(86_400_000), Some(86_400_000)),
            ("1970-01-02T00:00:00Z", Some(86_400_000), Some(86_400_000)),
            ("1970-01-02T02:30:00+02:30", Some(86_400_000), Some(86_400_000)),
            // In summer.
            ("2026-07-01T12:00:00", Some(1_782_907_200_000), Some(1_782_900_000_000)),
            ("tomorrow", None, None),
            ("", None, None),
        ] {
            assert_eq!(CeleryZone::default().ms(text), in_utc, "{text}");
            assert_eq!(paris.ms(text), in_paris, "{text}");
        }
    }

    #[test]
    fn a_zone_has_a_name() {
        assert_eq!("Paris".parse::<CeleryZone>(), Err(BadZone));
        let zone: CeleryZone = serde_json::from_str(r#""america/lima""#).unwrap();
        assert_eq!(serde_json::to_string(&zone).unwrap(), r#""America/Lima""#);
        assert_eq!(serde_json::to_string(&CeleryZone::default()).unwrap(), r#""UTC""#);
    }
}
