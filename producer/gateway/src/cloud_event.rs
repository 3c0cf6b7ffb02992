//! CloudEvents 1.0 as tasks: the type is the kind, the data is the payload, and source and id give the task's id.

use std::borrow::Cow;

use axum::http::HeaderMap;
use garenne_protocol::{
    list, quoted,
    task::{Kind, NewTask, TaskId},
};
use garenne_publish::{READING_KIND, Routes};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::{
    auth::Caller,
    idempotency::{Fingerprint, UsedKey},
    ingest::{Format, Ingest, Parsed, now},
    payload::RecordCount,
    record_tasks::RequestProperties,
    refusal::Refusal,
    task_properties::{content_type, only, short_text},
};

/// Longest source and id, in bytes.
const MAX_ATTRIBUTE: usize = 1024;

/// How a request carries its events.
pub(super) enum EventFormat {
    /// The attributes are headers, and the body is the data.
    Binary(Event<'static>),
    /// The body is one event (`application/cloudevents+json`).
    Structured,
    /// The body is an array of events (`application/cloudevents-batch+json`).
    Batch,
}

/// An event: the attributes that its task is made of, and its data in JSON. Others are skipped and not kept.
#[derive(Default, Deserialize)]
pub(super) struct Event<'e> {
    #[serde(borrow)]
    specversion: Option<Cow<'e, str>>,
    #[serde(borrow)]
    id: Option<Cow<'e, str>>,
    #[serde(borrow)]
    source: Option<Cow<'e, str>>,
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'e, str>>,
    #[serde(borrow)]
    datacontenttype: Option<Cow<'e, str>>,
    /// The extension for partitioning.
    #[serde(borrow)]
    partitionkey: Option<Cow<'e, str>>,
    #[serde(borrow)]
    data: Option<&'e RawValue>,
    data_base64: Option<IgnoredAny>,
}

impl EventFormat {
    /// The format by the headers of the request. Refuses a request that announces no event.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let text = |name: &'static str| -> Result<Option<Cow<'static, str>>, Refusal> {
            let Some(value) = only(headers, name)? else { return Ok(None) };
            let encoded = value.to_str().map_err(|_| Refusal::field(name, "expected visible ASCII"))?;
            let decoded = percent_decode_str(encoded).decode_utf8().map_err(|e| Refusal::field(name, e))?;
            Ok(Some(Cow::Owned(decoded.into_owned())))
        };
        let content_type = text("content-type")?;
        let media = content_type.as_deref().and_then(|it| it.split(';').next()).unwrap_or_default().trim();
        if media.eq_ignore_ascii_case("application/cloudevents+json") {
            return Ok(Self::Structured);
        }
        if media.eq_ignore_ascii_case("application/cloudevents-batch+json") {
            return Ok(Self::Batch);
        }
        if !headers.contains_key("ce-specversion") {
            return Err(Refusal::no_event(media));
        }
        Ok(Self::Binary(Event {
            specversion: text("ce-specversion")?,
            id: text("ce-id")?,
            source: text("ce-source")?,
            kind: text("ce-type")?,
            datacontenttype: content_type,
            partitionkey: text("ce-partitionkey")?,
            ..Event::default()
        }))
    }

    /// The tasks of a body, with ids of their sender.
    fn tasks(
        &self,
        body: Vec<u8>,
        routes: &Routes,
        caller: &Caller,
        max_events: usize,
    ) -> Result<Vec<NewTask>, Refusal> {
        match self {
            Self::Binary(event) => {
                let data = if body.is_empty() { b"null".to_vec() } else { body };
                serde_json::from_slice::<&RawValue>(&data).map_err(Refusal::malformed_body)?;
                Ok(vec![event.task(data, routes, caller)?])
            }
            Self::Structured => {
                let event: Event<'_> = serde_json::from_slice(&body).map_err(Refusal::malformed_body)?;
                Ok(vec![event.json_task(routes, caller)?])
            }
            Self::Batch => {
                let mut tasks = Vec::new();
                let read = list::for_each(&body, max_events, |index, event: Event<'_>| {
                    tasks.push(event.json_task(routes, caller).map_err(|refusal| refusal.of_record(index))?);
                    Ok(())
                });
                read.map_err(|error| Refusal::bad_list(error, "events", max_events))?;
                Ok(tasks)
            }
        }
    }
}

/// All events or none, as they are accepted.
impl Format for EventFormat {
    type Notes = ();

    fn count(&self, _: &RequestProperties) -> RecordCount {
        match self {
            // Its readings are parsed to check them.
            Self::Binary(event) if event.kind.as_deref() == Some(READING_KIND) => RecordCount::Mark(b'{'),
            Self::Binary(_) => RecordCount::One,
            Self::Structured | Self::Batch => RecordCount::Objects,
        }
    }

    fn parse(
        self,
        body: Vec<u8>,
        request: &RequestProperties,
        ingest: &Ingest,
    ) -> Result<Parsed<()>, Refusal> {
        let mut tasks = self.tasks(body, &ingest.routes, &request.caller, ingest.limits.max_records)?;
        let (mut records, mut keys) = (0, Vec::with_capacity(tasks.len()));
        let now = now();
        for (index, task) in tasks.iter_mut().enumerate() {
            let allowed = ingest.allow_task(task, &task.body, &request.caller);
            records += allowed.map_err(|refusal| refusal.of_record(index))?;
            task.trace.clone_from(&request.trace);
            keys.push(UsedKey {
                id: task.id.clone(),
                content: Fingerprint::of(task.kind.as_str(), &task.body),
                now,
                event: Some(index),
            });
        }
        Ok(Parsed { keys, ..Parsed::tasks(tasks, records, ()) })
    }
}

impl Event<'_> {
    /// The task of an event in JSON.
    fn json_task(&self, routes: &Routes, caller: &Caller) -> Result<NewTask, Refusal> {
        if self.data_base64.is_some() {
            return Err(Refusal::field("data_base64", "a task's payload is JSON: expected data"));
        }
        let data = self.data.map_or("null", RawValue::get);
        self.task(data.as_bytes().to_vec(), routes, caller)
    }

    /// The task of an event with this data.
    fn task(&self, data: Vec<u8>, routes: &Routes, caller: &Caller) -> Result<NewTask, Refusal> {
        let specversion = required("specversion", self.specversion.as_deref())?;
        if specversion != "1.0" {
            return Err(Refusal::field("specversion", format!("{} is not 1.0", quoted(specversion))));
        }
        let (id, source) = (required("id", self.id.as_deref())?, required("source", self.source.as_deref())?);
        let kind: Kind = routes.kind(required("type", self.kind.as_deref())?)?;
        let content_type = content_type(self.datacontenttype.as_deref())?;
        let key = short_text("partitionkey", self.partitionkey.as_deref())?;
        let namespace = TaskId::parse("cloudevent").expect("a constant");
        // The length keeps a source and an id apart from another pair with the same text.
        let id = TaskId::derived(&namespace, &format!("{}/{source}/{id}", source.len()));
        Ok(NewTask { id: caller.own_id(id), key, ..NewTask::new(kind, content_type, data) })
    }
}

fn required<'e>(name: &'static str, value: Option<&'e str>) -> Result<&'e str, Refusal> {
    match value {
        Some(value) if (1..=MAX_ATTRIBUTE).contains(&value.len()) => Ok(value),
        Some(_) => Err(Refusal::field(name, format!("expected 1 to {MAX_ATTRIBUTE} bytes"))),
        None => Err(Refusal::field(name, "required attribute is missing")),
    }
}
