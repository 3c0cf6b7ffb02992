//! The payload of `reading.process`, in any format that the gateway accepts.

use std::time::SystemTime;

use garenne_protocol::{
    sensor::{Fault, Limits, Record, Timestamp, readings_from},
    task::{READING_KIND, has_assumed_time},
};
use serde::Deserialize;
use time::OffsetDateTime;

use garenne::handler::{ContentType, Payload, PayloadError};

/// The readings of one task: a plain object, an array of them, or a SenML pack.
pub struct Readings {
    pub(super) records: Vec<Record>,
    /// The time that records without one got. [`None`] if the body has all times.
    assumed: Option<Timestamp>,
}

impl Readings {
    /// The records, of which those without a time have the one at which the task was accepted: a task that is delivered
    /// again must give the same readings.
    pub(super) fn accepted_at(mut self, accepted: Option<SystemTime>) -> Vec<Record> {
        if let (Some(assumed), Some(accepted)) = (self.assumed, accepted) {
            let accepted = Timestamp::from(OffsetDateTime::from(accepted));
            for Record { reading, .. } in self.records.iter_mut().filter(|record| record.time_assumed) {
                let since = reading.time.as_micros() - assumed.as_micros();
                reading.time = Timestamp::from_micros(accepted.as_micros() + since).unwrap_or(reading.time);
            }
        }
        self.records
    }
}

impl Payload for Readings {
    const KIND: &'static str = READING_KIND;

    fn read(content_type: ContentType, body: &[u8]) -> Result<Self, PayloadError> {
        let now = now();
        let records = readings_from(content_type.as_str(), body, now);
        let mut records = records.map_err(|error| match error.code {
            Fault::Malformed => PayloadError::Malformed(error.to_string()),
            _ => PayloadError::Invalid(error.to_string()),
        })?;
        let marked = has_assumed_time(body);
        if marked {
            records.iter_mut().for_each(|record| record.time_assumed = true);
        }
        Ok(Self { records, assumed: (!marked).then_some(now) })
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
