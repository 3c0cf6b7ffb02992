//! Reading a task from a delivery.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use amq_protocol::{
    protocol::BasicProperties,
    types::{AMQPValue, FieldTable},
};
use thiserror::Error;

use super::{
    content_type::{BATCH, ContentType},
    header::{self, integer},
    id::TaskId,
    incarnation::WorkerIncarnation,
    kind::Kind,
    trace::TraceContext,
    version::{BadVersion, Version},
};

/// Milliseconds since 1970, the form of times in message headers. 0 for a time before 1970.
pub fn epoch_ms(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, span_ms)
}

/// A span of time in milliseconds.
pub fn span_ms(span: Duration) -> i64 {
    span.as_millis().try_into().unwrap_or(i64::MAX)
}

/// A task without its payload, as read from a message's properties and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The task's id, a random one if the message has none; see [`Envelope::id_given`].
    pub id: TaskId,
    /// Whether the publisher set the id. A random id changes with every redelivery, so it cannot deduplicate
    /// effects.
    pub id_given: bool,
    /// The kind, which selects the handler.
    pub kind: Kind,
    /// The encoding of the body.
    pub content_type: ContentType,
    /// Number of attempts spent.
    pub attempt: u32,
    /// Maximum run time of an attempt, as requested by the publisher; the kind's own maximum bounds it.
    pub timeout: Option<Duration>,
    /// Due time, in milliseconds since 1970.
    pub not_before: Option<i64>,
    /// Expiry time, in milliseconds since 1970.
    pub expires_at: Option<i64>,
    /// The task's group.
    pub group: Option<String>,
    /// The publisher's correlation id.
    pub correlation_id: Option<String>,
    /// The queue that the publisher wants a reply in.
    pub reply_to: Option<String>,
    /// The trace that the task belongs to.
    pub trace: Option<TraceContext>,
    /// When the task was first accepted, and a sequence within that time.
    pub version: Version,
    /// Whether the message has its version. That of its arrival changes with every redelivery.
    pub version_given: bool,
    /// The task's record in the quarantine, if it was there. Boxed, because few tasks have one.
    pub quarantine: Option<Box<QuarantineRecord>>,
    /// What workers without a handler for the task recorded. Boxed, because few tasks have it.
    pub unhandled: Option<Box<UnhandledRecord>>,
    /// The lane that the task came from, if a worker recorded it.
    pub lane: Option<String>,
    /// The arrival of a foreign message. Boxed, because tasks have none.
    pub arrival: Option<Box<Arrival>>,
    /// Whether the payload is a call of Celery, `{"args":[…],"kwargs":{…}}`.
    pub celery: bool,
    /// Length of the chain of follow-ups that led to the task; 0 for a task that a client published.
    pub depth: u32,
    /// When the publisher says it published the task, in seconds since 1970. Absent if the value is too large to
    /// be in seconds.
    pub timestamp: Option<u64>,
    /// The same in milliseconds since 1970. Only publishers that use this crate set it.
    pub published_at: Option<i64>,
    /// When an operator last replayed the task, in milliseconds since 1970.
    pub replayed_at: Option<i64>,
    /// The broker's count of redeliveries (quorum queues); 0 if absent or not a number.
    pub delivery_count: u32,
}

/// What workers recorded about a task in the quarantine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuarantineRecord {
    /// Number of runs that ended with a crash of the worker.
    pub runs: u32,
    /// The worker of the last of these runs.
    pub worker: Option<WorkerIncarnation>,
}

/// What workers without a handler for a task recorded when they copied it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnhandledRecord {
    /// Since when no running worker has had its kind, in milliseconds since 1970.
    pub since: Option<i64>,
    /// When the copy comes back, rounded; see [`UNHANDLED_DUE`](header::UNHANDLED_DUE).
    pub due: Option<i64>,
    /// How often in a row it was passed on to workers that have its kind.
    pub passed_on: u32,
    /// Redeliveries that the broker counted for earlier copies.
    pub returns: u32,
}

/// Where a foreign message came from, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// See [`Source::from_label`](super::Source::from_label).
    pub source: Option<String>,
    /// When a worker first received the message, in microseconds since 1970.
    pub at_us: Option<i64>,
}

/// Why a message is not a valid task. The text names the property or header and the limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Malformed(String);

impl Envelope {
    /// The maximum of `garenne-timeout-ms` and `garenne-delay-ms`: 30 days in milliseconds.
    pub const MAX_MS: i64 = 30 * 24 * 3600 * 1000;
    /// The maximum size of a text header, in bytes.
    pub const MAX_TEXT: usize = 255;
    /// Tolerated clock skew: a due time may be this much later than [`MAX_MS`](Self::MAX_MS) from now. One day.
    const MAX_SKEW_MS: i64 = 24 * 3600 * 1000;
    /// The largest accepted `timestamp`, the end of the year 9999. A larger one cannot be in seconds.
    const MAX_TIMESTAMP: u64 = 253_402_300_799;

    /// Reads the envelope of a delivery.
    ///
    /// The kind is the property `type` if present. Otherwise it is the routing key, unless the lane has a
    /// `default_kind` and `known` says that the routing key has no handler here: then it is `default_kind`.
    ///
    /// # Errors
    /// [`Malformed`] names the property or header and what is allowed.
    pub fn read(
        routing_key: &str,
        properties: &BasicProperties,
        default_kind: Option<&str>,
        known: impl Fn(&str) -> bool,
        now: SystemTime,
    ) -> Result<Self, Malformed> {
        let headers = properties.headers();
        let id = properties.message_id().as_ref().map(|id| TaskId::parse(id.as_str())).transpose();
        let id = id.map_err(|error| Malformed(error.to_string()))?;
        let kind = match (properties.kind(), default_kind) {
            (Some(kind), _) => kind.as_str(),
            (None, Some(default)) if !known(routing_key) => default,
            (None, _) => routing_key,
        };
        let delay = number(headers, header::DELAY_MS, Self::MAX_MS)?.filter(|&ms| ms > 0);
        let latest = epoch_ms(now).saturating_add(Self::MAX_MS + Self::MAX_SKEW_MS);
        let not_before = number(headers, header::NOT_BEFORE, latest)?;
        Ok(Self {
            id_given: id.is_some(),
            id: id.unwrap_or_else(TaskId::random),
            kind: Kind::parse(kind).map_err(|error| Malformed(error.to_string()))?,
            content_type: match properties.content_type().as_ref().map(|it| it.as_str()) {
                Some(it) if it.starts_with("application/senml+json") => ContentType::SenmlJson,
                Some(BATCH) => ContentType::Batch,
                _ => ContentType::Json,
            },
            attempt: count(headers, header::ATTEMPT)?,
            timeout: number(headers, header::TIMEOUT_MS, Self::MAX_MS)?
                .map(|ms| Duration::from_millis(ms.unsigned_abs())),
            not_before: not_before.or(delay.map(|ms| epoch_ms(now).saturating_add(ms))),
            expires_at: expires_at(properties, now)?,
            group: text(headers, header::GROUP)?,
            correlation_id: properties.correlation_id().as_ref().map(|it| it.as_str().to_owned()),
            reply_to: properties.reply_to().as_ref().map(|it| it.as_str().to_owned()),
            trace: header::trace(headers),
            version: version(properties, now)?,
            version_given: header::get(headers, header::VERSION).is_some(),
            quarantine: QuarantineRecord::read(headers)?,
            unhandled: UnhandledRecord::read(headers)?,
            lane: text(headers, header::LANE)?,
            arrival: Arrival::read(headers),
            celery: header::get(headers, header::CELERY).is_some(),
            depth: count(headers, header::DEPTH)?,
            timestamp: valid_timestamp(properties),
            published_at: number(headers, header::PUBLISHED_AT, i64::MAX)?,
            replayed_at: number(headers, header::REPLAYED_AT, i64::MAX)?,
            delivery_count: header::get(headers, "x-delivery-count")
                .and_then(integer)
                .and_then(|n| n.try_into().ok())
                .unwrap_or(0),
        })
    }

    /// The redeliveries of the task: those that the broker counted for this message, and for earlier copies.
    pub fn returns(&self) -> u32 {
        let earlier = self.unhandled.as_ref().map_or(0, |record| record.returns);
        self.delivery_count.saturating_add(earlier)
    }

    /// The id of its trace, for logs.
    pub fn trace_id(&self) -> Option<&str> {
        self.trace.as_ref().map(TraceContext::trace_id)
    }

    /// Whether the task has expired at `now`.
    pub fn expired(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|at| at <= epoch_ms(now))
    }

    /// When the publisher says it published the task, in milliseconds since 1970: `published_at` if present,
    /// else the start of the second in `timestamp`.
    pub fn published_ms(&self) -> Option<i64> {
        let to_ms = |s: u64| i64::try_from(s).unwrap_or(i64::MAX).saturating_mul(1000);
        self.published_at.or_else(|| self.timestamp.map(to_ms))
    }

    /// The remaining time until the task is due at `now`; `None` if it may start.
    pub fn due_in(&self, now: SystemTime) -> Option<Duration> {
        let wait = self.not_before?.saturating_sub(epoch_ms(now));
        (wait > 0).then(|| Duration::from_millis(wait.unsigned_abs()))
    }
}

impl QuarantineRecord {
    fn read(headers: &Option<FieldTable>) -> Result<Option<Box<Self>>, Malformed> {
        let record = Self {
            runs: count(headers, header::QUARANTINE_RUNS)?,
            worker: read(headers, header::QUARANTINE_WORKER, "<worker>/<incarnation>", |value| {
                WorkerIncarnation::parse(&header::text(value)?)
            })?,
        };
        Ok((record != Self::default()).then(|| record.into()))
    }
}

impl UnhandledRecord {
    fn read(headers: &Option<FieldTable>) -> Result<Option<Box<Self>>, Malformed> {
        let record = Self {
            since: number(headers, header::UNHANDLED_SINCE, i64::MAX)?,
            due: number(headers, header::UNHANDLED_DUE, i64::MAX)?,
            passed_on: count(headers, header::PASSED_ON)?,
            returns: count(headers, header::RETURNS)?,
        };
        Ok((record != Self::default()).then(|| record.into()))
    }
}

impl Arrival {
    /// The maximum size of a source, in bytes. A longer one counts as absent.
    const MAX_SOURCE: usize = 1_100;

    fn read(headers: &Option<FieldTable>) -> Option<Box<Self>> {
        let source = header::get(headers, header::SOURCE).and_then(header::text);
        let at_us = header::get(headers, header::ARRIVED_US).and_then(integer);
        let arrival = Self {
            source: source.filter(|source| source.len() <= Self::MAX_SOURCE),
            at_us: at_us.filter(|at| *at >= 0),
        };
        (arrival != Self::default()).then(|| arrival.into())
    }
}

/// The expiry time in milliseconds since 1970: the header [`EXPIRES_AT`](header::EXPIRES_AT) if present, else
/// AMQP's relative `expiration` added to `timestamp`, or to `now` if there is no valid timestamp.
pub(super) fn expires_at(properties: &BasicProperties, now: SystemTime) -> Result<Option<i64>, Malformed> {
    if let Some(at) = number(properties.headers(), header::EXPIRES_AT, i64::MAX)? {
        return Ok(Some(at));
    }
    let Some(expiration) = properties.expiration() else { return Ok(None) };
    // Unsigned, as for the broker. A negative expiration could give a time before 1970, which no header can hold.
    let ms: u64 = expiration.as_str().parse().map_err(|_| {
        let text = expiration.as_str();
        Malformed(format!("property expiration must be milliseconds as decimal text, not {text:?}"))
    })?;
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    let start = valid_timestamp(properties)
        .map_or(epoch_ms(now), |s| s.saturating_mul(1000).try_into().unwrap_or(i64::MAX));
    Ok(Some(start.saturating_add(ms)))
}

/// The header [`VERSION`](header::VERSION) if present and not far ahead of `now`, else the time of arrival.
fn version(properties: &BasicProperties, now: SystemTime) -> Result<Version, Malformed> {
    let arrival = Version::of_arrival(valid_timestamp(properties), now);
    let Some(value) = header::get(properties.headers(), header::VERSION) else { return Ok(arrival) };
    let text = integer(value).map(|micros| micros.to_string()).or_else(|| header::text(value));
    let stated = text.ok_or(BadVersion).and_then(|text| text.parse::<Version>());
    let stated = stated.map_err(|error| Malformed(format!("header {} {error}", header::VERSION)))?;
    Ok(stated.unless_ahead_of(arrival))
}

/// The property `timestamp`, if it can be in seconds.
fn valid_timestamp(properties: &BasicProperties) -> Option<u64> {
    properties.timestamp().filter(|at| *at <= Envelope::MAX_TIMESTAMP)
}

/// Reads a header, which must be what `expected` says.
fn read<T>(
    headers: &Option<FieldTable>,
    name: &str,
    expected: impl fmt::Display,
    parse: impl FnOnce(&AMQPValue) -> Option<T>,
) -> Result<Option<T>, Malformed> {
    let Some(value) = header::get(headers, name) else { return Ok(None) };
    parse(value).map(Some).ok_or_else(|| Malformed(format!("header {name} must be {expected}")))
}

fn number(headers: &Option<FieldTable>, name: &str, max: i64) -> Result<Option<i64>, Malformed> {
    let expected = format_args!("a whole number from 0 to {max}");
    read(headers, name, expected, |value| integer(value).filter(|n| (0..=max).contains(n)))
}

fn count(headers: &Option<FieldTable>, name: &str) -> Result<u32, Malformed> {
    number(headers, name, 1_000_000).map(|n| n.and_then(|n| n.try_into().ok()).unwrap_or(0))
}

fn text(headers: &Option<FieldTable>, name: &str) -> Result<Option<String>, Malformed> {
    const MAX: usize = Envelope::MAX_TEXT;
    read(headers, name, format_args!("text of 1 to {MAX} bytes"), |value| {
        header::text(value).filter(|text| (1..=MAX).contains(&text.len()))
    })
}

#[cfg(test)]
mod tests;
