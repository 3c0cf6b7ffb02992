//! The properties of a copy: which of the original's it keeps, drops or replaces.
//!
//! - A copied `x-death` triggers the broker's cycle detection, which drops the message.
//! - `CC` and `BCC` would route the copy to further queues.
//! - The broker closes the channel if `user_id` is not the publishing user.
//! - `expiration` would override the TTL of the delay queue that the copy waits in.
//! - More than [`Copied::FOREIGN_BYTES`] of headers could make the content header larger than the negotiated
//!   frame size, which closes the connection.

use std::{borrow::Cow, cmp::Reverse, collections::BTreeMap, time::SystemTime};

use amq_protocol::{
    protocol::BasicProperties,
    types::{AMQPValue, ShortString},
};

use super::{
    content_type::{BATCH, ContentType},
    encoded::entry_bytes,
    envelope::{Envelope, UnhandledRecord, epoch_ms, expires_at, span_ms},
    header::{self, long},
    id::TaskId,
    incarnation::WorkerIncarnation,
    outcome::DeadReason,
};

/// Builder for the properties of a copy. The body of a copy is that of the original.
#[derive(Clone, Debug)]
#[must_use]
pub struct Copied {
    /// Without headers.
    properties: BasicProperties,
    headers: BTreeMap<ShortString, AMQPValue>,
}

/// Maximum size of the error text that a worker writes into a dead letter, in bytes.
const MAX_ERROR: usize = 1000;
/// Maximum size of a worker or lane name in a dead letter, in bytes.
const MAX_NAME: usize = 255;
/// Maximum size of a Garenne header, in bytes. Workers write no larger one, so a larger one counts as foreign.
const MAX_INTERNAL: usize = 1200;
/// Maximum size of a checkpoint, in bytes.
pub const MAX_CHECKPOINT: usize = 4096;
/// Encoded size of a header's name and type around a text of at most [`MAX_NAME`] bytes, rounded up.
const ENTRY_OVERHEAD: usize = 45;

impl Copied {
    /// The maximum size of all foreign headers of a copy together, in bytes.
    pub const FOREIGN_BYTES: usize = 32 * 1024;
    /// The maximum size of a header of a batch that the copy of a record keeps, in bytes. It keeps the headers that
    /// Garenne defines. Handlers do not see others, and a thousand records would each have a copy of all of them.
    pub const RECORD_HEADER: usize = MAX_NAME + ENTRY_OVERHEAD;
    /// An upper bound of the properties and headers of a record's copy together, in bytes.
    pub const RECORD_BYTES: usize = 16 * 1024;

    /// Starts a copy from the properties that the task arrived with. The copy always has `type`, because its
    /// routing key will be a queue name, and an id, so that all later copies are the same task. The copy of a
    /// batch's record is a message of its own: the record's content type, timeout and trace replace the
    /// batch's, and of the batch's headers it has only what the record needs as a task ([`Self::RECORD_HEADER`]).
    pub fn of(original: &BasicProperties, task: &Envelope, now: SystemTime) -> Self {
        let is_batch = original.content_type().as_ref().is_some_and(|it| it.as_str() == BATCH);
        let is_record = is_batch && task.content_type != ContentType::Batch;
        let mut copied = match is_record {
            true => Self::base_with(original, now, Self::RECORD_HEADER),
            false => Self::base(original, now),
        };
        // A copy is the same version, also if its publisher gave it none.
        copied = copied.with(header::VERSION, long(&task.version.to_string()));
        copied.properties =
            copied.properties.with_type(task.kind.as_str().into()).with_message_id(task.id.as_str().into());
        if is_record {
            return copied.unbatched(task);
        }
        // If the publisher set no trace, the first worker may have started one: its copies stay in that trace.
        if header::trace(original.headers()).is_some() { copied } else { copied.traced(task) }
    }

    fn unbatched(mut self, record: &Envelope) -> Self {
        self.properties = self.properties.with_content_type(record.content_type.as_str().into());
        if let Some(timeout) = record.timeout {
            self = self.with(header::TIMEOUT_MS, span_ms(timeout));
        }
        self.without(header::TRACEPARENT).without(header::TRACESTATE).traced(record)
    }

    fn traced(mut self, task: &Envelope) -> Self {
        self.headers.extend(task.trace.iter().flat_map(header::of_trace));
        self
    }

    /// Starts a copy of a message that could not be read as a task. A missing `type` is set to the original's
    /// routing key, because the copy's routing key is a queue name.
    pub fn verbatim(original: &BasicProperties, routing_key: &str, now: SystemTime) -> Self {
        let mut copied = Self::base(original, now);
        if original.kind().is_none()
            && !routing_key.is_empty()
            && let Ok(kind) = ShortString::try_new(routing_key)
        {
            copied.properties = copied.properties.with_type(kind);
        }
        copied
    }

    /// Starts the dead letter of a foreign payload, which never was a task. `source` says where it came from. A content
    /// type that is too long for the property is left out.
    pub fn foreign(id: &TaskId, kind: &str, content_type: &str, source: &str) -> Self {
        let mut properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(id.as_str().into())
            .with_type(kind.into());
        if let Ok(content_type) = ShortString::try_new(content_type) {
            properties = properties.with_content_type(content_type);
        }
        Self { properties, headers: BTreeMap::new() }.with(header::SOURCE, long(source))
    }

    /// The properties of a message that goes to another queue as it is, for programs other than Garenne. Only what the broker
    /// wrote is left out, and what no message of another publisher may have.
    pub fn unchanged(original: &BasicProperties) -> BasicProperties {
        let mut kept =
            with(BasicProperties::default(), original.delivery_mode(), BasicProperties::with_delivery_mode);
        kept = with(kept, original.expiration(), BasicProperties::with_expiration);
        kept = with_others(with_identity(kept, original), original);
        let Some(headers) = original.headers() else { return kept };
        let headers = headers.inner().iter().filter(|(name, _)| !is_of_broker(name.as_str()));
        let headers: BTreeMap<_, _> = headers.map(|(name, value)| (name.clone(), value.clone())).collect();
        kept.with_headers(headers.into())
    }

    /// The original's properties without those that no copy may have.
    fn base(original: &BasicProperties, now: SystemTime) -> Self {
        Self::base_with(original, now, usize::MAX)
    }

    /// As [`Self::base`]. Below `usize::MAX`, `largest` is the size of the largest header that the copy keeps, and it
    /// keeps none that Garenne does not define.
    fn base_with(original: &BasicProperties, now: SystemTime, largest: usize) -> Self {
        let is_dropped = |name: &str| is_of_broker(name) || name == header::DELAY_MS;
        let (mut headers, mut left_out) = (BTreeMap::new(), (0, 0));
        for (name, value) in
            original.headers().iter().flatten().filter(|(name, _)| !is_dropped(name.as_str()))
        {
            let is_needed = || header::ALL.contains(&name.as_str()) && entry_bytes(name, value) <= largest;
            if largest == usize::MAX || is_needed() {
                headers.insert(name.clone(), value.clone());
            } else {
                left_out = (left_out.0 + 1, left_out.1 + entry_bytes(name, value));
            }
        }
        if let Some(user) = original.user_id() {
            headers.insert(header::USER_ID.into(), long(user.as_str()));
        }
        if let Ok(Some(at)) = expires_at(original, now) {
            headers.insert(header::EXPIRES_AT.into(), at.into());
        }
        let copied = Self { properties: without_expiration_and_user(original), headers };
        if left_out.0 > 0 { copied.add_dropped(left_out.0, left_out.1) } else { copied }
    }

    /// Sets a header.
    pub fn with(mut self, name: &'static str, value: impl Into<AMQPValue>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Removes a header.
    pub fn without(mut self, name: &str) -> Self {
        self.headers.remove(name);
        self
    }

    /// Sets the number of attempts spent.
    pub fn attempt(self, spent: u32) -> Self {
        self.with(header::ATTEMPT, AMQPValue::LongUInt(spent))
    }

    /// Sets what the handler of the attempt wrote as its checkpoint.
    pub fn checkpoint(self, json: &str) -> Self {
        self.with(header::CHECKPOINT, long(json))
    }

    /// Sets the due time, in milliseconds since 1970.
    pub fn not_before(self, at: i64) -> Self {
        self.with(header::NOT_BEFORE, at)
    }

    /// Sets the due time of a task that was received at `received_at`, if it has a delay instead. Copies have none.
    pub fn due_after_delay(self, original: &BasicProperties, received_at: SystemTime) -> Self {
        let delay = header::get(original.headers(), header::DELAY_MS).and_then(header::integer);
        match delay.filter(|_| !self.headers.contains_key(header::NOT_BEFORE)) {
            Some(ms) => self.not_before(epoch_ms(received_at).saturating_add(ms)),
            None => self,
        }
    }

    /// Sets the number of quarantine runs that ended with a crash of the worker, and the worker of the last.
    pub fn crashed(self, runs: u32, worker: &WorkerIncarnation) -> Self {
        self.with(header::QUARANTINE_RUNS, AMQPValue::LongUInt(runs))
            .with(header::QUARANTINE_WORKER, long(&worker.to_string()))
            .handled()
    }

    /// Removes all quarantine headers and those of a task without a handler, for a task that leaves the quarantine or
    /// enters it again.
    pub fn unmarked(self) -> Self {
        self.without(header::QUARANTINE_RUNS).without(header::QUARANTINE_WORKER).handled()
    }

    /// Removes the headers that workers without the task's handler write.
    fn handled(self) -> Self {
        self.without(header::UNHANDLED_SINCE)
            .without(header::UNHANDLED_DUE)
            .without(header::PASSED_ON)
            .without(header::RETURNS)
    }

    /// Sets what a worker without the task's handler records.
    pub fn unhandled(self, record: UnhandledRecord) -> Self {
        let UnhandledRecord { since, due, passed_on, returns } = record;
        let copied = self.handled();
        let times = [(header::UNHANDLED_SINCE, since), (header::UNHANDLED_DUE, due)];
        let times = times.into_iter().filter_map(|(name, at)| Some((name, at?)));
        let copied = times.fold(copied, |copied, (name, at)| copied.with(name, at));
        let counts = [(header::PASSED_ON, passed_on), (header::RETURNS, returns)];
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        counts.fold(copied, |copied, (name, count)| copied.with(name, AMQPValue::LongUInt(count)))
    }

    /// Sets the key to `id` if there is none, as [`NewTask::keyed`](super::NewTask::keyed) does.
    pub fn keyed(self, id: &str) -> Self {
        if self.headers.contains_key(header::KEY) { self } else { self.with(header::KEY, long(id)) }
    }

    /// Sets when a worker first received the task, unless the header already has a valid time.
    pub fn first_seen(self, received_at: SystemTime) -> Self {
        let present = self.headers.get(header::FIRST_SEEN).and_then(header::integer);
        if present.is_some_and(|at| at >= 0) {
            self
        } else {
            self.with(header::FIRST_SEEN, epoch_ms(received_at))
        }
    }

    /// Sets the headers of a dead letter. Control characters in `error` become spaces, and of more than 1,000 bytes it loses
    /// its middle: the first cause is at its end. `worker` and `lane` are cut to 255 bytes.
    pub fn dead(self, reason: DeadReason, error: &str, worker: &str, lane: &str, now: SystemTime) -> Self {
        let line: String = error.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.with(header::REASON, long(reason.as_str()))
            .with(header::ERROR, long(&cut_middle(&line, MAX_ERROR)))
            .with(header::WORKER, long(cut(worker, MAX_NAME)))
            .with(header::LANE, long(cut(lane, MAX_NAME)))
            .with(header::DIED_AT, epoch_ms(now))
            .first_seen(now)
    }

    /// Whether the copy is a dead letter.
    pub fn is_dead(&self) -> bool {
        self.headers.contains_key(header::REASON)
    }

    /// Removes what a dead letter says, for a task that comes back.
    pub fn without_death(self) -> Self {
        [header::REASON, header::ERROR, header::WORKER, header::DIED_AT].into_iter().fold(self, Self::without)
    }

    /// Whether the task crashed workers in the quarantine.
    pub fn is_marked(&self) -> bool {
        self.headers.contains_key(header::QUARANTINE_RUNS)
    }

    /// The minimal copy: only id, `type`, content type and the headers that say what happened to the task.
    ///
    /// For a connection whose frames are too small for the full copy. Its content header frame has at most
    /// 4,000 bytes; the smallest frame size that AMQP 0-9-1 permits is 4,096.
    pub fn bare(self) -> Self {
        let reported = [
            header::REASON,
            header::ERROR,
            header::WORKER,
            header::CELERY,
            header::LANE,
            header::SOURCE,
            header::ARRIVED_US,
            header::FIRST_SEEN,
            header::DIED_AT,
            header::ATTEMPT,
            header::VERSION,
        ];
        let is_kept = |name: &ShortString, value: &AMQPValue| {
            let limit = if name.as_str() == header::ERROR { MAX_INTERNAL } else { MAX_NAME + ENTRY_OVERHEAD };
            reported.contains(&name.as_str()) && entry_bytes(name, value) <= limit
        };
        let (kept, dropped): (BTreeMap<_, _>, BTreeMap<_, _>) =
            self.headers.into_iter().partition(|(name, value)| is_kept(name, value));
        let bytes = dropped.iter().map(|(name, value)| entry_bytes(name, value)).sum();
        Self { properties: identity(&self.properties), headers: kept }.add_dropped(dropped.len(), bytes)
    }

    /// Drops foreign headers, the largest first, until at most [`Self::FOREIGN_BYTES`] of them are left.
    fn limit_foreign(mut self) -> Self {
        let sizes = self.headers.iter().map(|(name, value)| (name, entry_bytes(name, value)));
        let mut foreign: Vec<_> = sizes
            .filter(|(name, bytes)| !header::ALL.contains(&name.as_str()) || *bytes > max_internal(name))
            .collect();
        let total: usize = foreign.iter().map(|(_, bytes)| bytes).sum();
        foreign.sort_by_key(|(name, bytes)| (Reverse(*bytes), *name));
        let mut dropped_bytes = 0;
        let mut dropped = Vec::new();
        for (name, bytes) in foreign {
            if total - dropped_bytes <= Self::FOREIGN_BYTES {
                break;
            }
            dropped_bytes += bytes;
            dropped.push(name.clone());
        }
        if dropped.is_empty() {
            return self;
        }
        for name in &dropped {
            self.headers.remove(name);
        }
        self.add_dropped(dropped.len(), dropped_bytes)
    }

    /// Adds to the counts of dropped headers, which cover all copies since the original.
    fn add_dropped(self, count: usize, bytes: usize) -> Self {
        let sum = |name, more: usize| {
            let before = self.headers.get(name).and_then(header::integer).unwrap_or(0).max(0);
            before.saturating_add(i64::try_from(more).unwrap_or(i64::MAX))
        };
        let (count, bytes) = (sum(header::DROPPED, count), sum(header::DROPPED_BYTES, bytes));
        self.with(header::DROPPED, count).with(header::DROPPED_BYTES, bytes)
    }

    /// The finished properties. Their content header frame has at most 64 KiB for every original.
    pub fn into_properties(self) -> BasicProperties {
        let limited = self.limit_foreign();
        header::set(limited.properties, limited.headers)
    }
}

/// Maximum size of the Garenne header of this name, in bytes.
fn max_internal(name: &ShortString) -> usize {
    if name.as_str() == header::CHECKPOINT { MAX_CHECKPOINT + ENTRY_OVERHEAD } else { MAX_INTERNAL }
}

/// Whether the broker writes a header, or would route a message by it again.
fn is_of_broker(name: &str) -> bool {
    matches!(name, "x-death" | "x-delivery-count" | "x-acquired-count" | "CC" | "BCC")
        || name.starts_with("x-first-death-")
        || name.starts_with("x-last-death-")
}

/// The start of the text, at most `max_bytes`, cut at a character boundary.
fn cut(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// The text without its middle, at most `max_bytes`: the first half and the last one.
fn cut_middle(text: &str, max_bytes: usize) -> Cow<'_, str> {
    const GAP: &str = " … ";
    if text.len() <= max_bytes {
        return text.into();
    }
    let half = (max_bytes - GAP.len()) / 2;
    let (begin, end) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    format!("{}{GAP}{}", &text[..begin], &text[end..]).into()
}

/// The properties that even a minimal copy has. Properties are built anew, because `BasicProperties` has no way to
/// remove one.
fn identity(original: &BasicProperties) -> BasicProperties {
    with_identity(BasicProperties::default().with_delivery_mode(2), original)
}

fn with_identity(mut kept: BasicProperties, original: &BasicProperties) -> BasicProperties {
    kept = with(kept, original.message_id(), BasicProperties::with_message_id);
    kept = with(kept, original.kind(), BasicProperties::with_type);
    with(kept, original.content_type(), BasicProperties::with_content_type)
}

/// All properties but headers, `expiration` and `user_id`.
fn without_expiration_and_user(original: &BasicProperties) -> BasicProperties {
    with_others(identity(original), original)
}

fn with_others(mut kept: BasicProperties, original: &BasicProperties) -> BasicProperties {
    kept = with(kept, original.content_encoding(), BasicProperties::with_content_encoding);
    kept = with(kept, original.priority(), BasicProperties::with_priority);
    kept = with(kept, original.correlation_id(), BasicProperties::with_correlation_id);
    kept = with(kept, original.reply_to(), BasicProperties::with_reply_to);
    kept = with(kept, original.timestamp(), BasicProperties::with_timestamp);
    with(kept, original.app_id(), BasicProperties::with_app_id)
}

/// Sets a property if there is a value.
fn with<T: Clone>(
    properties: BasicProperties,
    value: &Option<T>,
    set: fn(BasicProperties, T) -> BasicProperties,
) -> BasicProperties {
    value.iter().cloned().fold(properties, set)
}

#[cfg(test)]
mod tests;
