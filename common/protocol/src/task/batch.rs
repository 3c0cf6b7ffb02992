//! Several tasks of one kind in one message.
//!
//! A gateway collects readings while a publisher confirm is outstanding and publishes them together, so that
//! the broker stores, replicates and confirms one message for all of them. Each record has its own id,
//! payload and trace, as a message of its own would. The message's `type` is the kind of every record; its
//! `message_id` identifies the batch, not a task.

use std::{borrow::Cow, fmt::Display, time::SystemTime};

use amq_protocol::protocol::BasicProperties;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;

use super::{
    ContentType, Envelope, NewTask, header,
    id::TaskId,
    kind::Kind,
    new_task::published,
    trace::TraceContext,
    version::{BadVersion, Version},
};
use crate::list::{self, ListError};

/// The maximum number of records in a batch.
pub const MOST_RECORDS: usize = 1000;

#[derive(Serialize, Deserialize)]
struct JsonRecord<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    traceparent: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    tracestate: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    senml: bool,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// A record of a batch. The payload borrows from the batch's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRecord<'a> {
    /// The task's id.
    pub id: TaskId,
    /// The encoding of the payload: JSON or SenML, never a batch.
    pub content_type: ContentType,
    /// The trace that the task belongs to.
    pub trace: Option<TraceContext>,
    /// Its version, unless its publisher has left that to the worker.
    pub version: Option<Version>,
    /// Its index in the batch.
    pub index: usize,
    /// The payload, byte for byte as its publisher wrote it.
    pub payload: &'a [u8],
}

impl BatchRecord<'_> {
    /// The record's envelope: id, trace, version and content type are its own, everything else is the batch's.
    pub fn envelope(&self, batch: &Envelope) -> Envelope {
        // Without one of its own, it follows the records before it.
        let version = self.version.map(|version| version.unless_ahead_of(batch.version));
        Envelope {
            version: version.unwrap_or_else(|| batch.version.plus(self.index)),
            version_given: version.is_some() || batch.version_given,
            id: self.id.clone(),
            id_given: true,
            content_type: self.content_type,
            trace: self.trace.clone(),
            ..batch.clone()
        }
    }
}

/// Why a body is not a valid batch.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct BadBatch(String);

/// Writes the body of a batch. A record has no place for a task's group, delay or timeout: the caller
/// publishes a task with one of them, or with a body that is not JSON, as a message of its own.
///
/// # Errors
/// The body of a task is not JSON.
pub fn write_batch<'a>(tasks: impl IntoIterator<Item = &'a NewTask>) -> Result<Vec<u8>, serde_json::Error> {
    let mut body = vec![b'['];
    for task in tasks {
        if body.len() > 1 {
            body.push(b',');
        }
        let trace = task.trace.as_ref();
        let record = JsonRecord {
            id: task.id.as_str().into(),
            traceparent: trace.map(|trace| trace.parent().into()),
            tracestate: trace.and_then(TraceContext::state).map(Cow::from),
            senml: task.content_type == ContentType::SenmlJson,
            version: Some(task.version.to_string().into()),
            payload: serde_json::from_slice(&task.body)?,
        };
        serde_json::to_writer(&mut body, &record)?;
    }
    body.push(b']');
    Ok(body)
}

/// The properties of a batch: persistent, with a random id and `now` as timestamp. `key` selects the queue
/// in a lane with several; without one, no key header is set.
pub fn batch_properties(kind: &Kind, key: Option<&str>, now: SystemTime) -> BasicProperties {
    let properties = published(&TaskId::random(), kind, ContentType::Batch, now);
    let headers = key.map(|key| (header::KEY.into(), header::long(key)));
    header::set(properties, headers.into_iter().collect())
}

/// Reads the body of a batch.
///
/// # Errors
/// [`BadBatch`]: not a list of records, an invalid id, no records or more than [`MOST_RECORDS`].
pub fn read_batch(body: &[u8]) -> Result<Vec<BatchRecord<'_>>, BadBatch> {
    let mut records = Vec::new();
    let read = list::for_each(body, MOST_RECORDS, |index, record: JsonRecord<'_>| {
        let bad = |error: &dyn Display| BadBatch(format!("batch record {index}: {error}"));
        let state = record.tracestate.as_deref();
        let version = record.version.map(|version| version.parse()).transpose();
        records.push(BatchRecord {
            id: TaskId::parse(&record.id).map_err(|error| bad(&error))?,
            version: version.map_err(|error: BadVersion| bad(&format_args!("version {error}")))?,
            index,
            content_type: if record.senml { ContentType::SenmlJson } else { ContentType::Json },
            trace: record.traceparent.and_then(|parent| TraceContext::parse(&parent, state)),
            payload: record.payload.get().as_bytes(),
        });
        Ok(())
    });
    match read {
        Ok(()) if records.is_empty() => {
            Err(BadBatch(format!("batch has 0 records, 1 to {MOST_RECORDS} are allowed")))
        }
        Ok(()) => Ok(records),
        Err(ListError::TooMany) => Err(BadBatch(format!(
            "batch has more than {MOST_RECORDS} records, 1 to {MOST_RECORDS} are allowed"
        ))),
        Err(ListError::Refused(problem)) => Err(problem),
        Err(ListError::Json(error)) => Err(BadBatch(format!("batch: {error}"))),
    }
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
    fn written_records_read_back_with_id_trace_and_payload_bytes() {
        let traced = NewTask {
            trace: TraceContext::parse(PARENT, Some("v=1")),
            content_type: ContentType::SenmlJson,
            ..task("b\"2", "[1.50, 2]")
        };
        let plain = task("a", r#"{"value": 1.0}"#);
        let (first, body) = (plain.version, write_batch([&plain, &traced]).unwrap());
        assert_eq!(
            str::from_utf8(&body).unwrap(),
            format!(
                r#"[{{"id":"a","version":"{first}","payload":{{"value": 1.0}}}},{{"id":"b\"2","traceparent":"{PARENT}","tracestate":"v=1","senml":true,"version":"{}","payload":[1.50, 2]}}]"#,
                traced.version
            )
        );
        let read = read_batch(&body).unwrap();
        assert_eq!((read[0].id.as_str(), read[0].payload), ("a", &br#"{"value": 1.0}"#[..]));
        assert_eq!((read[1].id.as_str(), read[1].content_type), ("b\"2", ContentType::SenmlJson));
        assert_eq!(read[1].trace, traced.trace);
        assert_eq!([read[0].version, read[1].version], [Some(first), Some(traced.version)]);
        assert!(traced.trace.is_some());
    }

    #[test]
    fn a_record_has_its_own_version_or_follows_the_records_before_it() {
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(9);
        let batch = Envelope::read("k", &BasicProperties::default(), None, |_| true, now).unwrap();
        let body = br#"[{"id":"a","version":"7-1","payload":1},{"id":"b","payload":1},{"id":"c","version":"90000000000000","payload":1}]"#;
        let records = read_batch(body).unwrap();
        let versions: Vec<_> = records.iter().map(|it| it.envelope(&batch).version.to_string()).collect();
        assert_eq!(
            versions,
            ["7-1", "9000000-1", "9000000-0"],
            "the last is far ahead of the worker's clock"
        );
    }

    #[test]
    fn an_invalid_batch_is_refused_with_the_reason() {
        let error = |body: &str| read_batch(body.as_bytes()).unwrap_err().to_string();
        assert_eq!(error("[]"), "batch has 0 records, 1 to 1000 are allowed");
        assert_eq!(error(r#"[{"id":"","payload":1}]"#), "batch record 0: message_id is empty");
        assert_eq!(
            error(r#"[{"id":"a","version":"soon","payload":1}]"#),
            format!("batch record 0: version {BadVersion}")
        );
        assert!(error("{}").starts_with("batch: invalid type: map"), "{}", error("{}"));
        assert!(error(r#"[["a",null,null,false,1]]"#).starts_with("batch: invalid type: sequence"));
        let many =
            format!(r#"[{}{{"id":"a","payload":1}} nonsense"#, r#"{"id":"a","payload":1},"#.repeat(1000));
        assert_eq!(
            error(&many),
            "batch has more than 1000 records, 1 to 1000 are allowed",
            "the rest is not read"
        );
        assert!(write_batch([&task("a", "nonsense")]).is_err());
    }
}
