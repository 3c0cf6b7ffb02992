//! The devices that the payload of a task names.

use garenne_protocol::{
    sensor::{
        KeyedValues, Timestamp,
        parse::{Form, Limits, readings_in},
    },
    task::NewTask,
};
use garenne_publish::READING_KIND;
use serde::Deserialize;

use crate::refusal::Refusal;

/// The device in the payload of the kinds that have one.
#[derive(Deserialize)]
struct Named {
    device: Option<String>,
}

/// The devices of the readings in `body`, or the device in the field `device` of another task. A task may name none.
/// Refuses readings that contradict each other, and a payload that is not an object: as a list it could have the
/// device in any place.
pub(super) fn devices_of(
    task: &NewTask,
    body: &[u8],
    sender: &str,
    now: Timestamp,
    limits: &Limits,
) -> Result<Vec<String>, Refusal> {
    if task.kind.as_str() == READING_KIND {
        let records = readings_in(Form::of(task.content_type.as_str())?, body, now, limits)?;
        let mut values = KeyedValues::default();
        for (index, record) in records.iter().enumerate() {
            values.add(&record.reading).map_err(|error| error.in_record(index))?;
        }
        return Ok(records.iter().map(|record| record.reading.device.to_string()).collect());
    }
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Refusal::hidden_device(sender));
    }
    // Two fields `device` are an error: a worker could read the other one.
    let Named { device } = serde_json::from_slice(body).map_err(Refusal::malformed_body)?;
    Ok(device.into_iter().collect())
}
