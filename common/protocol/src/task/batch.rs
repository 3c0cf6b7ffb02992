//! Several tasks of one kind in one message.
//!
//! A gateway gathers readings while a confirm is under way and publishes them together: the broker
//! then stores, replicates and confirms one message for all of them. Each record keeps what a task of
//! its own would have: id, payload and trace. The message's own `type` is the kind of all records,
//! its `message_id` names the pack and stands for no task.

use std::{borrow::Cow, time::SystemTime};

use amq_protocol::{protocol::BasicProperties, types::FieldTable};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;

use super::{
    BATCH, ContentType, Envelope, NewTask,
    envelope::epoch_ms,
    header,
    id::{IdError, TaskId},
    kind::Kind,
    trace::TraceContext,
};

/// The most records in one pack.
pub const MOST_RECORDS: usize = 1000;

/// A record as it is written.
#[derive(Serialize, Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    traceparent: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    tracestate: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "is_false")]
    senml: bool,
    #[serde(borrow)]
    payload: &'a RawValue,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A record of a pack, borrowed from its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRecord<'a> {
    /// The task's own id.
    pub id: TaskId,
    /// How the payload is written.
    pub content_type: ContentType,
    /// The trace it belongs to.
    pub trace: Option<TraceContext>,
    /// The payload, byte for byte as its sender's task would have had it.
    pub payload: &'a [u8],
}

impl BatchRecord<'_> {
    /// The record as a task: its own id, trace and way of writing, and all else as its pack has it.
    pub fn envelope(&self, pack: &Envelope) -> Envelope {
        Envelope {
            id: self.id.clone(),
            id_given: true,
            content_type: self.content_type,
            trace: self.trace.clone(),
            ..pack.clone()
        }
    }
}

/// A body that is no pack.
#[derive(Debug, Error)]
pub enum BadBatch {
    /// Not JSON, or not an array of records.
    #[error("batch: {0}")]
    Json(#[from] serde_json::Error),
    /// A record's id.
    #[error("batch record {index}: {error}")]
    Id {
        /// The record's place.
        index: usize,
        /// What is wrong.
        error: IdError,
    },
    /// None, or too many.
    #[error("batch has {0} records, 1 to {MOST_RECORDS} are allowed")]
    Count(usize),
}

/// Writes a pack. Group, delay and timeout of the tasks are not written: tasks that have one travel
/// alone, and so does a task whose body is not JSON.
///
/// # Errors
/// A body is not JSON.
pub fn write_batch<'a>(tasks: impl IntoIterator<Item = &'a NewTask>) -> Result<Vec<u8>, serde_json::Error> {
    let mut body = vec![b'['];
    for task in tasks {
        if body.len() > 1 {
            body.push(b',');
        }
        let trace = task.trace.as_ref();
        let record = Written {
            id: task.id.as_str().into(),
            traceparent: trace.map(|trace| trace.parent().into()),
            tracestate: trace.and_then(TraceContext::state).map(Cow::from),
            senml: task.content_type == ContentType::SenmlJson,
            payload: serde_json::from_slice(&task.body)?,
        };
        serde_json::to_writer(&mut body, &record)?;
    }
    body.push(b']');
    Ok(body)
}

/// The properties a pack travels with: persistent, with an id of its own, stamped with the time, and with a
/// key where several queues share tasks of its kind.
pub fn batch_properties(kind: &Kind, key: Option<&str>, now: SystemTime) -> BasicProperties {
    let properties = BasicProperties::default()
        .with_message_id(TaskId::random().as_str().into())
        .with_type(kind.as_str().into())
        .with_content_type(BATCH.into())
        .with_delivery_mode(2)
        .with_timestamp(epoch_ms(now).unsigned_abs() / 1000);
    let Some(key) = key else { return properties };
    let mut headers = FieldTable::default();
    headers.insert(header::KEY.into(), header::long(key));
    properties.with_headers(headers)
}

/// Reads a pack.
///
/// # Errors
/// [`BadBatch`].
pub fn read_batch(body: &[u8]) -> Result<Vec<BatchRecord<'_>>, BadBatch> {
    let written: Vec<Written<'_>> = serde_json::from_slice(body)?;
    if !(1..=MOST_RECORDS).contains(&written.len()) {
        return Err(BadBatch::Count(written.len()));
    }
    written.into_iter().enumerate().map(|(index, record)| packed(index, record)).collect()
}

fn packed(index: usize, record: Written<'_>) -> Result<BatchRecord<'_>, BadBatch> {
    let trace =
        record.traceparent.and_then(|parent| TraceContext::parse(&parent, record.tracestate.as_deref()));
    Ok(BatchRecord {
        id: TaskId::parse(&record.id).map_err(|error| BadBatch::Id { index, error })?,
        content_type: if record.senml { ContentType::SenmlJson } else { ContentType::Json },
        trace,
        payload: record.payload.get().as_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Kind;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn task(id: &str, body: &str) -> NewTask {
        let kind = Kind::parse("reading.process").unwrap();
        let task = NewTask::new(kind, ContentType::Json, body.as_bytes().to_vec());
        NewTask { id: TaskId::parse(id).unwrap(), ..task }
    }

    #[test]
    fn each_record_keeps_its_id_its_trace_and_every_byte_of_its_payload() {
        let traced = NewTask {
            trace: TraceContext::parse(PARENT, Some("v=1")),
            content_type: ContentType::SenmlJson,
            ..task("b\"2", "[1.50, 2]")
        };
        let body = write_batch([&task("a", r#"{"value": 1.0}"#), &traced]).unwrap();
        assert_eq!(
            str::from_utf8(&body).unwrap(),
            format!(
                r#"[{{"id":"a","payload":{{"value": 1.0}}}},{{"id":"b\"2","traceparent":"{PARENT}","tracestate":"v=1","senml":true,"payload":[1.50, 2]}}]"#
            )
        );
        let read = read_batch(&body).unwrap();
        assert_eq!((read[0].id.as_str(), read[0].payload), ("a", &br#"{"value": 1.0}"#[..]));
        assert_eq!((read[1].id.as_str(), read[1].content_type), ("b\"2", ContentType::SenmlJson));
        assert_eq!(read[1].trace, traced.trace);
        assert!(traced.trace.is_some());
    }

    #[test]
    fn what_is_no_pack_says_so() {
        let error = |body: &str| read_batch(body.as_bytes()).unwrap_err().to_string();
        assert_eq!(error("[]"), "batch has 0 records, 1 to 1000 are allowed");
        assert_eq!(error(r#"[{"id":"","payload":1}]"#), "batch record 0: message_id is empty");
        assert!(error("{}").starts_with("batch: invalid type: map"), "{}", error("{}"));
        assert!(write_batch([&task("a", "nonsense")]).is_err());
    }
}
