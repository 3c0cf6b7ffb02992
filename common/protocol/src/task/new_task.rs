//! A task to publish, and the message properties it is published with.

use std::time::{Duration, SystemTime};

use amq_protocol::{protocol::BasicProperties, types::AMQPValue};
use serde::de::DeserializeOwned;

use super::{
    app_headers::AppHeaders,
    content_type::ContentType,
    envelope::{Envelope, epoch_ms, span_ms},
    header::{self, long},
    id::TaskId,
    kind::Kind,
    trace::TraceContext,
    version::Version,
};

/// A task to publish.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// The task's id.
    pub id: TaskId,
    /// The kind; also the routing key.
    pub kind: Kind,
    /// The encoding of the body.
    pub content_type: ContentType,
    /// The payload.
    pub body: Vec<u8>,
    /// The task's group.
    pub group: Option<String>,
    /// Selects the queue in a lane with several: equal keys go to the same queue.
    pub key: Option<String>,
    /// Delay before the start.
    pub delay: Option<Duration>,
    /// Maximum run time of an attempt.
    pub timeout: Option<Duration>,
    /// The trace that the task continues.
    pub trace: Option<TraceContext>,
    /// When the task was accepted or created, and a sequence within that time.
    pub version: Version,
    /// For a follow-up: the parent's id, and the follow-up's own depth.
    pub parent: Option<(TaskId, u32)>,
    /// Headers of the application.
    pub headers: AppHeaders,
}

impl NewTask {
    /// A task with a new random id and a new version; every optional field is empty.
    pub fn new(kind: Kind, content_type: ContentType, body: Vec<u8>) -> Self {
        Self::with_id(TaskId::random(), kind, content_type, body)
    }

    /// The payload of a task whose body is JSON.
    ///
    /// # Errors
    /// The body is no JSON of this type.
    pub fn payload<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.body)
    }

    /// The same with this id.
    pub fn with_id(id: TaskId, kind: Kind, content_type: ContentType, body: Vec<u8>) -> Self {
        Self {
            id,
            kind,
            content_type,
            body,
            group: None,
            key: None,
            delay: None,
            timeout: None,
            trace: None,
            version: Version::next(),
            parent: None,
            headers: AppHeaders::default(),
        }
    }

    /// A follow-up of `parent`: it has the parent's group, trace and version, and its depth plus 1. The body is JSON.
    pub fn following(parent: &Envelope, id: TaskId, kind: Kind, body: Vec<u8>) -> Self {
        Self {
            group: parent.group.clone(),
            trace: parent.trace.clone(),
            version: parent.version,
            parent: Some((parent.id.clone(), parent.depth.saturating_add(1))),
            ..Self::with_id(id, kind, ContentType::Json, body)
        }
    }

    /// Sets the key to the task's id if it has none. Without a key, all tasks go to one queue of a lane with
    /// several.
    #[must_use]
    pub fn keyed(mut self) -> Self {
        self.key.get_or_insert_with(|| self.id.as_str().to_owned());
        self
    }

    /// The properties to publish the task with: persistent, with `now` as timestamp.
    pub fn properties(&self, now: SystemTime) -> BasicProperties {
        let (parent, depth) = self.parent.as_ref().map(|(parent, depth)| (parent, *depth)).unzip();
        let entries: [(&str, Option<AMQPValue>); 8] = [
            (header::GROUP, self.group.as_deref().map(long)),
            // A stop directive covers the group's tasks published before it; seconds would be too coarse.
            (header::PUBLISHED_AT, self.group.as_ref().map(|_| epoch_ms(now).into())),
            (header::VERSION, Some(long(&self.version.to_string()))),
            (header::KEY, self.key.as_deref().map(long)),
            (header::DELAY_MS, self.delay.map(|span| span_ms(span).into())),
            (header::TIMEOUT_MS, self.timeout.map(|span| span_ms(span).into())),
            (header::PARENT, parent.map(|id| long(id.as_str()))),
            (header::DEPTH, depth.map(AMQPValue::LongUInt)),
        ];
        let present = entries.into_iter().filter_map(|(name, value)| Some((name.into(), value?)));
        let own = self.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        let headers = present.chain(self.trace.iter().flat_map(header::of_trace)).chain(own).collect();
        header::set(published(&self.id, &self.kind, self.content_type, now), headers)
    }
}

/// The properties that every published message has: persistent, with `now` as timestamp.
pub(super) fn published(
    id: &TaskId,
    kind: &Kind,
    content_type: ContentType,
    now: SystemTime,
) -> BasicProperties {
    BasicProperties::default()
        .with_message_id(id.as_str().into())
        .with_type(kind.as_str().into())
        .with_content_type(content_type.as_str().into())
        .with_delivery_mode(2)
        .with_timestamp(epoch_ms(now).unsigned_abs() / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(properties: &BasicProperties) -> Envelope {
        Envelope::read("bench.noop", properties, None, |_| true, SystemTime::now()).unwrap()
    }

    #[test]
    fn only_a_task_with_a_group_has_its_publish_time_in_milliseconds() {
        let kind = Kind::parse("bench.noop").unwrap();
        let mut task = NewTask::new(kind, ContentType::Json, b"{}".to_vec());
        let now = std::time::UNIX_EPOCH + Duration::from_millis(1_800_000_000_789);
        assert_eq!(read(&task.properties(now)).published_at, None, "only groups are stopped by time");
        task.group = Some("g".into());
        let read = read(&task.properties(now));
        assert_eq!((read.published_at, read.timestamp), (Some(1_800_000_000_789), Some(1_800_000_000)));
    }

    #[test]
    fn a_follow_up_has_its_parents_id_and_its_depth_as_headers() {
        let kind = Kind::parse("bench.noop").unwrap();
        let mut task = NewTask::new(kind, ContentType::Json, b"{}".to_vec());
        assert_eq!(read(&task.properties(SystemTime::now())).depth, 0);
        task.parent = Some((TaskId::parse("p").unwrap(), 3));
        let properties = task.properties(SystemTime::now());
        assert_eq!(header::get(properties.headers(), header::PARENT).and_then(header::text).unwrap(), "p");
        assert_eq!(read(&properties).depth, 3);
    }
}
