//! `spool export`: the records of a spool as JSON lines.

use std::time::UNIX_EPOCH;

use base64::Engine;
use garenne_common::{
    exit::{Exit, Failure},
    stdout::print_line,
};
use garenne_spool::{Inspection, Record, task::task_of};
use serde::Serialize;
use serde_json::value::RawValue;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// A record as JSON.
#[derive(Serialize)]
struct Line<'a> {
    segment: &'a str,
    position: u64,
    id: &'a str,
    /// When it was accepted.
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// The delay that was asked for, since `time`.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u128>,
    /// The payload of a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    /// The content of a record that is not a task, or whose payload is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

/// Prints the records that wait, or those of segments that were set aside.
pub(super) fn run(inspection: &Inspection, set_aside: bool) -> Result<Exit, Failure> {
    let mut exit = Exit::Done;
    for (name, segment) in inspection.segments() {
        let segment = match segment {
            Ok(segment) => segment,
            Err(error) => {
                tracing::error!(segment = name, %error, "cannot read a segment");
                exit = Exit::Failed;
                continue;
            }
        };
        if segment.is_set_aside() == set_aside {
            segment.records().try_for_each(|(position, record)| print_line(line(name, position, record)))?;
        }
    }
    Ok(exit)
}

/// The JSON line of a record.
pub(super) fn line(segment: &str, position: u64, record: Record) -> String {
    let id = record.id.clone();
    // At the time of its acceptance, so that the whole delay is shown.
    let task = task_of(record.clone(), record.time).ok();
    let payload = task.as_ref().and_then(|task| {
        let text = String::from_utf8(task.body.clone()).ok().filter(|text| !text.contains('\n'));
        // A payload over several lines would break the line.
        let text = text.or_else(|| {
            let value: serde_json::Value = serde_json::from_slice(&task.body).ok()?;
            serde_json::to_string(&value).ok()
        });
        RawValue::from_string(text?).ok()
    });
    let base64 = payload.is_none().then(|| base64::prelude::BASE64_STANDARD.encode(&record.body));
    let task = task.as_ref();
    let line = Line {
        segment,
        position,
        id: &id,
        time: rfc3339(&record),
        kind: task.map(|task| task.kind.to_string()),
        content_type: task.map(|task| task.content_type.as_str()),
        group: task.and_then(|task| task.group.clone()),
        key: task.and_then(|task| task.key.clone()),
        delay_ms: task.and_then(|task| task.delay).map(|delay| delay.as_millis()),
        timeout_ms: task.and_then(|task| task.timeout).map(|timeout| timeout.as_millis()),
        payload,
        base64,
    };
    serde_json::to_string(&line).expect("texts and numbers are plain JSON")
}

fn rfc3339(record: &Record) -> String {
    // Years over 9999 have no such text.
    let time = OffsetDateTime::UNIX_EPOCH.checked_add(
        time::Duration::try_from(record.time.duration_since(UNIX_EPOCH).unwrap_or_default())
            .unwrap_or_default(),
    );
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_default()
}
