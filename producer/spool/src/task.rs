//! Tasks as records: a line of JSON with the properties, then the payload as it is.

use std::time::{Duration, SystemTime};

use garenne_protocol::task::{BadVersion, ContentType, Kind, NewTask, TaskId, TraceContext};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::record::Record;

/// The properties of a task, without its id.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Properties {
    kind: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    senml: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tracestate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<(String, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
}

/// A record that is not a task.
#[derive(Debug, Error)]
#[error("record {id:?} is not a task: {problem}")]
pub struct NotATask {
    /// The record's id.
    pub id: String,
    /// The problem.
    pub problem: String,
}

/// The record of a task that is accepted at `time`.
pub fn record_of(task: &NewTask, time: SystemTime) -> Record {
    let milliseconds = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let properties = Properties {
        kind: task.kind.as_str().to_owned(),
        senml: task.content_type == ContentType::SenmlJson,
        group: task.group.clone(),
        key: task.key.clone(),
        delay_ms: task.delay.map(milliseconds),
        timeout_ms: task.timeout.map(milliseconds),
        traceparent: task.trace.as_ref().map(|trace| trace.parent().to_owned()),
        tracestate: task.trace.as_ref().and_then(TraceContext::state).map(str::to_owned),
        parent: task.parent.as_ref().map(|(id, depth)| (id.as_str().to_owned(), *depth)),
        version: Some(task.version.to_string()),
    };
    let mut body = serde_json::to_vec(&properties).expect("texts and numbers are plain JSON");
    body.push(b'\n');
    body.extend(&task.body);
    Record { id: task.id.as_str().to_owned(), time, body }
}

/// The task of a record. The time in the spool counts as part of its delay. Fails if [`record_of`] did not write the
/// record.
pub fn task_of(record: Record, now: SystemTime) -> Result<NewTask, NotATask> {
    let Record { id, time, body } = record;
    let waited = now.duration_since(time).unwrap_or_default();
    read(&id, &body, waited).map_err(|problem| NotATask { id, problem })
}

fn read(id: &str, body: &[u8], waited: Duration) -> Result<NewTask, String> {
    let end = body.iter().position(|&byte| byte == b'\n').ok_or("it has no line of properties")?;
    let properties: Properties =
        serde_json::from_slice(&body[..end]).map_err(|error| format!("properties: {error}"))?;
    let id = TaskId::parse(id).map_err(|error| error.to_string())?;
    let kind = Kind::parse(&properties.kind).map_err(|error| error.to_string())?;
    let content_type = if properties.senml { ContentType::SenmlJson } else { ContentType::Json };
    let parent =
        properties.parent.map(|(parent, depth)| TaskId::parse(&parent).map(|parent| (parent, depth)));
    // A record of an earlier program has none.
    let version = properties.version.map(|version| version.parse()).transpose();
    let version = version.map_err(|error: BadVersion| format!("version {error}"))?;
    let state = properties.tracestate.as_deref();
    let delay = properties.delay_ms.map(|ms| Duration::from_millis(ms).saturating_sub(waited));
    let task = NewTask::with_id(id, kind, content_type, body[end + 1..].to_vec());
    Ok(NewTask {
        version: version.unwrap_or(task.version),
        group: properties.group,
        key: properties.key,
        delay: delay.filter(|delay| !delay.is_zero()),
        timeout: properties.timeout_ms.map(Duration::from_millis),
        trace: properties.traceparent.and_then(|parent| TraceContext::parse(&parent, state)),
        parent: parent.transpose().map_err(|error| format!("parent: {error}"))?,
        ..task
    })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn task() -> NewTask {
        let kind = Kind::parse("reading.process").unwrap();
        NewTask {
            id: TaskId::parse("a\"1").unwrap(),
            ..NewTask::new(kind, ContentType::SenmlJson, b"[1.50,\n2]".to_vec())
        }
    }

    #[test]
    fn a_task_reads_back_with_all_its_properties() {
        let full = NewTask {
            group: Some("g".into()),
            key: Some("d1".into()),
            timeout: Some(Duration::from_millis(1500)),
            trace: TraceContext::parse(PARENT, Some("v=1")),
            parent: Some((TaskId::parse("p").unwrap(), 3)),
            ..task()
        };
        assert!(full.trace.is_some());
        for task in [task(), full] {
            let record = record_of(&task, UNIX_EPOCH);
            assert_eq!(record.id, "a\"1");
            let read = task_of(record, UNIX_EPOCH).unwrap();
            assert_eq!(format!("{read:?}"), format!("{task:?}"));
        }
    }

    #[test]
    fn the_time_in_the_spool_counts_as_part_of_the_delay() {
        let task = NewTask { delay: Some(Duration::from_secs(10)), ..task() };
        let delay_after = |waited| {
            let record = record_of(&task, UNIX_EPOCH);
            task_of(record, UNIX_EPOCH + Duration::from_secs(waited)).unwrap().delay
        };
        assert_eq!((delay_after(4), delay_after(10)), (Some(Duration::from_secs(6)), None));
    }

    #[test]
    fn a_record_that_is_no_task_is_refused_with_its_id() {
        let record = |body: &str| Record { id: "x".into(), time: UNIX_EPOCH, body: body.into() };
        let error = |body: &str| task_of(record(body), UNIX_EPOCH).unwrap_err().to_string();
        assert_eq!(error("{}"), "record \"x\" is not a task: it has no line of properties");
        assert!(error("{}\n1").starts_with("record \"x\" is not a task: properties: missing field `kind`"));
    }
}
