//! The payload of `reading.process`, in any format that the gateway accepts.

use garenne_protocol::{
    sensor::{Fault, Limits, Record, Timestamp, readings_from},
    task::has_assumed_time,
};
use serde::Deserialize;
use time::OffsetDateTime;

use garenne::handler::{ContentType, Payload, PayloadError};

/// The readings of one task: a plain object, an array of them, or a SenML pack.
pub struct Readings(pub(super) Vec<Record>);

impl Payload for Readings {
    const KIND: &'static str = "reading.process";

    fn read(content_type: ContentType, body: &[u8]) -> Result<Self, PayloadError> {
        let records = readings_from(content_type.as_str(), body, now());
        let mut records = records.map_err(|error| match error.code {
            Fault::Malformed => PayloadError::Malformed(error.to_string()),
            _ => PayloadError::Invalid(error.to_string()),
        })?;
        if has_assumed_time(body) {
            records.iter_mut().for_each(|record| record.time_assumed = true);
        }
        Ok(Self(records))
    }
}

/// The device of a single reading. A SenML pack or an array may have several.
pub(super) fn device(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Reading {
        device: String,
    }
    let device = serde_json::from_slice::<Reading>(body).ok()?.device;
    // A longer one is refused, and must not be kept as a key before.
    (device.len() <= Limits::TEXT_BYTES).then_some(device)
}

/// The current time, for readings without a time and for the limit on future times.
pub(super) fn now() -> Timestamp {
    OffsetDateTime::now_utc().into()
}
