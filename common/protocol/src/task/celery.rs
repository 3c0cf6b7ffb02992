//! Calls that Celery's senders publish (message protocol 2 with a JSON body), as tasks.
//!
//! A worker that receives a call makes a task of Garenne of it: the payload is `{"args":[…],"kwargs":{…}}`, and the
//! header [`CELERY`](header::CELERY) says so. All copies are copies of that task. Senders that are not Python leave
//! headers out, so nothing but the name of the task is required.

#[cfg(not(feature = "celery"))]
mod no_zone;
mod reply;
#[cfg(feature = "celery")]
mod zone;

use std::{collections::BTreeMap, time::SystemTime};

use amq_protocol::{
    protocol::BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

use super::{
    content_type::ContentType,
    envelope::Envelope,
    header::{self, integer},
    id::TaskId,
    kind::Kind,
};

#[cfg(not(feature = "celery"))]
pub use no_zone::{BadZone, CeleryZone};
pub use reply::{CELERY_REPLY_ENCODING, celery_failure, celery_success};
#[cfg(feature = "celery")]
pub use zone::{BadZone, CeleryZone};

/// The header with the name of the task.
const TASK: &str = "task";
/// Values of the property `content_encoding` that change nothing.
const PLAIN: [&str; 4] = ["", "identity", "utf-8", "binary"];

/// A call as a task.
#[derive(Clone, Debug, PartialEq)]
pub struct CeleryCall {
    /// The task's properties.
    pub properties: BasicProperties,
    /// The payload: an object with the array `args` and the object `kwargs`.
    pub body: Vec<u8>,
}

/// Why no task can be made of a call. The text is part of the dead letter's error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a message of Celery: {0}")]
pub struct BadCall(String);

/// The body of a call: positional arguments, keyword arguments, and signatures.
#[derive(Deserialize)]
struct Body<'a>(
    #[serde(borrow)] &'a RawValue,
    #[serde(borrow)] &'a RawValue,
    #[serde(borrow, default)] Option<Signatures<'a>>,
);

/// What Celery's worker would publish after the task.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Signatures<'a> {
    #[serde(borrow)]
    callbacks: Option<&'a RawValue>,
    #[serde(borrow)]
    errbacks: Option<&'a RawValue>,
    #[serde(borrow)]
    chain: Option<&'a RawValue>,
    #[serde(borrow)]
    chord: Option<&'a RawValue>,
}

impl CeleryCall {
    /// The name of the task that a message calls. [`None`] if it has no header that says so.
    pub fn task(properties: &BasicProperties) -> Option<&str> {
        header::get(properties.headers(), TASK).and_then(text)
    }

    /// Whether a message is a call, and no task that was made of one. A call without headers is recognized by its body,
    /// an array that begins with the array of the arguments.
    pub fn is_call(properties: &BasicProperties, body: &[u8]) -> bool {
        let headers = properties.headers();
        let is_task = header::get(headers, header::CELERY).is_some();
        let begins = || {
            let mut bytes = body.iter().filter(|byte| !byte.is_ascii_whitespace());
            bytes.next() == Some(&b'[') && bytes.next() == Some(&b'[')
        };
        !is_task && (header::get(headers, TASK).is_some() || begins())
    }

    /// Reads a call. Times without a zone are in `zone`.
    ///
    /// # Errors
    /// [`BadCall`] says what the message has that no worker of Garenne can do.
    pub fn read(
        properties: &BasicProperties,
        body: &[u8],
        zone: &CeleryZone,
        now: SystemTime,
    ) -> Result<Self, BadCall> {
        check_encoding(properties)?;
        let headers = properties.headers();
        let mut read = Self::labelled(properties)?;
        let mut kept = kept_headers(headers);
        kept.insert(header::CELERY.into(), AMQPValue::Boolean(true));
        let retries = header::get(headers, "retries").and_then(integer).filter(|retries| *retries > 0);
        if let Some(retries) = retries.and_then(|retries| u32::try_from(retries).ok()) {
            kept.insert(header::ATTEMPT.into(), AMQPValue::LongUInt(retries));
        }
        if let Some(eta) = zone.header_ms(headers, "eta")?.filter(|eta| *eta > super::epoch_ms(now)) {
            if eta > super::epoch_ms(now).saturating_add(Envelope::MAX_MS) {
                return Err(BadCall("its eta is more than 30 days ahead".to_owned()));
            }
            kept.insert(header::NOT_BEFORE.into(), eta.into());
        }
        match zone.header_ms(headers, "expires")? {
            Some(expires) => drop(kept.insert(header::EXPIRES_AT.into(), expires.into())),
            None => {
                if let Some(expiration) = properties.expiration() {
                    read = read.with_expiration(expiration.clone());
                }
            }
        }
        if let Some(limit) = time_limit_ms(headers) {
            kept.insert(header::TIMEOUT_MS.into(), limit.into());
        }
        read = read.with_content_type(ContentType::Json.as_str().into());
        if header::get(headers, "ignore_result") != Some(&AMQPValue::Boolean(true))
            && let Some(queue) = properties.reply_to().as_ref().filter(|queue| !queue.as_str().is_empty())
        {
            read = read.with_reply_to(queue.clone());
        }
        Ok(Self { properties: read.with_headers(FieldTable::from(kept)), body: payload(body)? })
    }

    /// The properties of a call that stays as it is, with kind and id where Garenne looks for them.
    pub fn refused(properties: &BasicProperties) -> BasicProperties {
        let Ok(labelled) = Self::labelled(properties) else { return properties.clone() };
        let mut refused = properties.clone();
        if let Some(kind) = labelled.kind() {
            refused = refused.with_type(kind.clone());
        }
        match labelled.message_id() {
            Some(id) => refused.with_message_id(id.clone()),
            None => refused,
        }
    }

    /// Kind, id, and the properties that mean the same for Celery and Garenne.
    fn labelled<'a>(properties: &'a BasicProperties) -> Result<BasicProperties, BadCall> {
        let mut read = BasicProperties::default().with_delivery_mode(2);
        let of = |property: &'a Option<ShortString>| property.as_ref().map(|it| it.as_str());
        if let Some(kind) = Self::task(properties).or_else(|| of(properties.kind())) {
            Kind::parse(kind).map_err(|error| BadCall(error.to_string()))?;
            read = read.with_type(kind.into());
        }
        let id = header::get(properties.headers(), "id").and_then(text);
        let id = id.or_else(|| of(properties.correlation_id())).or_else(|| of(properties.message_id()));
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            TaskId::parse(id).map_err(|error| BadCall(error.to_string()))?;
            read = read.with_message_id(id.into());
        }
        if let Some(correlation) = properties.correlation_id() {
            read = read.with_correlation_id(correlation.clone());
        }
        // Celery's senders always set one. Some versions of RabbitMQ deliver messages without one earlier than those with 0.
        if let Some(priority) = properties.priority().filter(|priority| *priority > 0) {
            read = read.with_priority(priority);
        }
        if let Some(timestamp) = properties.timestamp() {
            read = read.with_timestamp(*timestamp);
        }
        Ok(read)
    }
}

/// The headers that a task keeps: those that the application added, and those of Garenne.
fn kept_headers(headers: &Option<FieldTable>) -> BTreeMap<ShortString, AMQPValue> {
    let all = headers.iter().flat_map(FieldTable::inner);
    all.filter(|(name, _)| !is_celerys(name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Whether a header is Celery's own. A worker has read it, or it has no meaning for a task.
fn is_celerys(name: &str) -> bool {
    matches!(
        name,
        "argsrepr"
            | "compression"
            | "eta"
            | "expires"
            | "group"
            | "group_index"
            | "id"
            | "ignore_result"
            | "kwargsrepr"
            | "lang"
            | "origin"
            | "parent_id"
            | "replaced_task_nesting"
            | "retries"
            | "root_id"
            | "shadow"
            | "stamped_headers"
            | "stamps"
            | TASK
            | "timelimit"
    )
}

/// Fails if the body would have to be decompressed, or is not JSON.
fn check_encoding(properties: &BasicProperties) -> Result<(), BadCall> {
    let is_json = |it: &str| it.is_empty() || it.starts_with("application/json");
    let content_type = properties.content_type().as_ref().map_or("", |it| it.as_str());
    if !is_json(content_type) {
        let known = match content_type {
            "application/x-python-serialize" => " (pickle)",
            "application/x-yaml" => " (yaml)",
            "application/x-msgpack" => " (msgpack)",
            _ => "",
        };
        let hint = "send JSON: task_serializer = \"json\"";
        return Err(BadCall(format!("content type {content_type:?}{known} is not supported; {hint}")));
    }
    if let Some(compression) = header::get(properties.headers(), "compression").and_then(header::text) {
        let hint = "leave task_compression unset";
        return Err(BadCall(format!("compression {compression:?} is not supported; {hint}")));
    }
    let encoding = properties.content_encoding().as_ref().map_or("", |it| it.as_str());
    match PLAIN.iter().any(|plain| encoding.eq_ignore_ascii_case(plain)) {
        true => Ok(()),
        false => Err(BadCall(format!("content encoding {encoding:?} is not supported; send UTF-8"))),
    }
}

/// The smaller of the hard and the soft limit in milliseconds. The message has both in seconds, as `[hard, soft]`.
fn time_limit_ms(headers: &Option<FieldTable>) -> Option<i64> {
    let AMQPValue::FieldArray(limits) = header::get(headers, "timelimit")? else { return None };
    let seconds = |limit: &AMQPValue| match limit {
        AMQPValue::Double(seconds) => Some(*seconds),
        AMQPValue::Float(seconds) => Some((*seconds).into()),
        #[expect(clippy::cast_precision_loss, reason = "a limit of seconds")]
        other => integer(other).map(|seconds| seconds as f64),
    };
    let limits = limits.as_slice().iter().filter_map(seconds).filter(|limit| *limit > 0.0);
    let limit = limits.min_by(f64::total_cmp)?;
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "it is bounded before")]
    Some((limit * 1000.0).ceil().min(Envelope::MAX_MS as f64) as i64)
}

fn payload(body: &[u8]) -> Result<Vec<u8>, BadCall> {
    let bad = |problem: &str| BadCall(format!("the body must be [args, kwargs, embed]: {problem}"));
    let Body(args, kwargs, signatures) =
        serde_json::from_slice(body).map_err(|error| bad(&error.to_string()))?;
    if let Some(name) = signatures.as_ref().and_then(Signatures::first) {
        return Err(BadCall(format!("it has {name}, which only Celery's workers run")));
    }
    let args = or_empty(args, "[]", '[').ok_or_else(|| bad("args is no array"))?;
    let kwargs = or_empty(kwargs, "{}", '{').ok_or_else(|| bad("kwargs is no object"))?;
    Ok([r#"{"args":"#, args, r#","kwargs":"#, kwargs, "}"].concat().into_bytes())
}

/// The text of a value that begins with `begin`. A null is empty.
fn or_empty<'a>(value: &'a RawValue, empty: &'static str, begin: char) -> Option<&'a str> {
    match value.get() {
        "null" => Some(empty),
        text => text.starts_with(begin).then_some(text),
    }
}

/// The text of a header, if it is one.
fn text(value: &AMQPValue) -> Option<&str> {
    match value {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str()),
        _ => None,
    }
}

impl Signatures<'_> {
    /// The name of the first that is there.
    fn first(&self) -> Option<&'static str> {
        let all = [
            ("callbacks (link)", self.callbacks),
            ("errbacks (link_error)", self.errbacks),
            ("a chain", self.chain),
            ("a chord", self.chord),
        ];
        let is_there = |value: &RawValue| !matches!(value.get(), "null" | "[]" | "{}");
        all.into_iter().find(|(_, value)| value.is_some_and(is_there)).map(|(name, _)| name)
    }
}

#[cfg(all(test, feature = "celery"))]
mod tests;
