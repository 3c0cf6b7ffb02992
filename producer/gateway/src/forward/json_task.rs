//! A task as a JSON object.

use std::{borrow::Cow, time::Duration};

use garenne_protocol::task::{BadVersion, ContentType, NewTask, TaskId, TraceContext, span_ms};
use garenne_publish::Routes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    refusal::Refusal,
    task_properties::{content_type, milliseconds, short_text},
};

/// A task as a JSON object, with its payload as it is.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JsonTask<'t> {
    #[serde(borrow)]
    id: Cow<'t, str>,
    #[serde(borrow)]
    kind: Cow<'t, str>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    content_type: Option<Cow<'t, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    group: Option<Cow<'t, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'t, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    traceparent: Option<Cow<'t, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    tracestate: Option<Cow<'t, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    version: Option<Cow<'t, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    parent: Option<Parent<'t>>,
    #[serde(borrow)]
    payload: &'t RawValue,
}

/// The task that a follow-up comes from.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parent<'t> {
    #[serde(borrow)]
    id: Cow<'t, str>,
    /// The depth of the follow-up.
    depth: u32,
}

impl<'t> JsonTask<'t> {
    pub(crate) fn of(task: &'t NewTask) -> serde_json::Result<Self> {
        let milliseconds = |span: Option<Duration>| span.map(|span| span_ms(span).unsigned_abs());
        Ok(Self {
            id: task.id.as_str().into(),
            kind: task.kind.as_str().into(),
            content_type: (task.content_type != ContentType::Json).then(|| task.content_type.as_str().into()),
            group: task.group.as_deref().map(Cow::Borrowed),
            key: task.key.as_deref().map(Cow::Borrowed),
            delay_ms: milliseconds(task.delay),
            timeout_ms: milliseconds(task.timeout),
            traceparent: task.trace.as_ref().map(|trace| trace.parent().into()),
            tracestate: task.trace.as_ref().and_then(TraceContext::state).map(Cow::Borrowed),
            version: Some(task.version.to_string().into()),
            parent: task.parent.as_ref().map(|(id, depth)| Parent { id: id.as_str().into(), depth: *depth }),
            payload: serde_json::from_slice(&task.body)?,
        })
    }

    /// Whether it has the version of the site that accepted it. Programs other than a gateway may leave it out.
    pub(crate) fn has_version(&self) -> bool {
        self.version.is_some()
    }

    /// The task, under the id that it has. Refuses an invalid property and a kind that no lane takes.
    pub(crate) fn task(&self, routes: &Routes) -> Result<NewTask, Refusal> {
        let id = |field, text: &str| TaskId::parse(text).map_err(|error| Refusal::field(field, error));
        let parent = match &self.parent {
            Some(parent) => Some((id("parent.id", &parent.id)?, parent.depth)),
            None => None,
        };
        let kind = routes.kind(&self.kind)?;
        let content_type = content_type(self.content_type.as_deref())?;
        let trace = self.traceparent.as_deref();
        let version = self.version.as_deref().map(str::parse).transpose();
        let version = version.map_err(|error: BadVersion| Refusal::field("version", error))?;
        let body = self.payload.get().as_bytes().to_vec();
        let task = NewTask::with_id(id("id", &self.id)?, kind, content_type, body);
        Ok(NewTask {
            version: version.unwrap_or(task.version),
            group: short_text("group", self.group.as_deref())?,
            key: short_text("key", self.key.as_deref())?,
            delay: self.delay_ms.map(|ms| milliseconds("delay_ms", ms, Some(ms))).transpose()?,
            timeout: self.timeout_ms.map(|ms| milliseconds("timeout_ms", ms, Some(ms))).transpose()?,
            trace: trace.and_then(|parent| TraceContext::parse(parent, self.tracestate.as_deref())),
            parent,
            ..task
        })
    }
}

#[cfg(test)]
mod tests {
    use garenne_protocol::task::Kind;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn routes() -> Routes {
        Routes::new(["reading.#".to_owned()])
    }

    #[test]
    fn a_task_reads_back_with_all_its_properties_and_its_payload_as_it_was() {
        let kind = Kind::parse("reading.process").unwrap();
        let plain = NewTask::new(kind.clone(), ContentType::Json, b"{\"v\": 1.50,\n\"w\":1e3}".to_vec());
        let full = NewTask {
            id: TaskId::parse("a\"1").unwrap(),
            group: Some("g".into()),
            key: Some("Köln".into()),
            delay: Some(Duration::from_millis(1500)),
            timeout: Some(Duration::from_secs(2)),
            trace: TraceContext::parse(PARENT, Some("v=1")),
            parent: Some((TaskId::parse("p").unwrap(), 3)),
            ..NewTask::new(kind, ContentType::SenmlJson, b"[null]".to_vec())
        };
        for task in [plain, full] {
            let text = serde_json::to_string(&JsonTask::of(&task).unwrap()).unwrap();
            let read: JsonTask<'_> = serde_json::from_str(&text).unwrap();
            assert_eq!(format!("{:?}", read.task(&routes()).unwrap()), format!("{task:?}"));
        }
    }

    #[test]
    fn an_invalid_property_is_named() {
        let refused = |fields: &str| {
            let text = format!(r#"{{"payload":{{}},{fields}}}"#);
            let task: JsonTask<'_> = serde_json::from_str(&text).unwrap();
            task.task(&routes()).unwrap_err().to_string()
        };
        assert_eq!(refused(r#""id":"","kind":"reading.process""#).split(':').next(), Some("id"));
        assert!(refused(r#""id":"1","kind":"x""#).starts_with("no lane takes kind \"x\""));
        let with = |field: &str| refused(&format!(r#""id":"1","kind":"reading.process",{field}"#));
        assert_eq!(with(r#""key":"""#), "key: expected 1 to 255 bytes");
        assert!(with(r#""delay_ms":99999999999999"#).starts_with("delay_ms: "));
        assert!(with(r#""version":"soon""#).starts_with("version: must be microseconds"));
        assert!(with(r#""parent":{"id":"","depth":1}"#).starts_with("parent.id: "));
    }

    #[test]
    fn a_payload_that_is_not_json_is_refused() {
        let kind = Kind::parse("reading.process").unwrap();
        assert!(JsonTask::of(&NewTask::new(kind, ContentType::Json, b"no".to_vec())).is_err());
    }
}
