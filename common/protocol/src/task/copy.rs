//! The properties of a copy: which of the original's it keeps, drops or replaces.
//!
//! - A copied `x-death` triggers the broker's cycle detection, which drops the message.
//! - `CC` and `BCC` would route the copy to further queues.
//! - The broker closes the channel if `user_id` is not the publishing user.
//! - `expiration` would override the TTL of the delay queue that the copy waits in.
//! - More than [`Copied::FOREIGN_BYTES`] of headers could make the content header larger than the negotiated
//!   frame size, which closes the connection.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
    time::SystemTime,
};

use amq_protocol::{
    protocol::BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};

use super::{
    content_type::{BATCH, ContentType},
    encoded::entry_bytes,
    envelope::{Envelope, epoch_ms, expires_at},
    header::{self, long},
    incarnation::WorkerIncarnation,
    outcome::DeadReason,
};

/// Builder for the properties of a copy. The body of a copy is that of the original.
#[derive(Clone, Debug)]
pub struct Copied {
    properties: BasicProperties,
    headers: FieldTable,
}

/// Maximum size of the error text that a worker writes into a dead letter, in bytes.
const MAX_ERROR: usize = 1000;
/// Maximum size of a worker or lane name in a dead letter, in bytes.
const MAX_NAME: usize = 255;
/// Maximum size of a Garenne header, in bytes. Workers write no larger one, so a larger one counts as foreign.
const MAX_INTERNAL: usize = 1200;
/// Encoded size of a header's name and type around a text of at most [`MAX_NAME`] bytes, rounded up.
const ENTRY_OVERHEAD: usize = 45;

impl Copied {
    /// The maximum size of all foreign headers of a copy together, in bytes.
    pub const FOREIGN_BYTES: usize = 32 * 1024;

    /// Starts a copy from the properties that the task arrived with. The copy always has `type`, because its
    /// routing key will be a queue name, and an id, so that all later copies are the same task. The copy of a
    /// batch's record is a message of its own: the record's content type, timeout and trace replace the
    /// batch's.
    pub fn of(original: &BasicProperties, task: &Envelope, now: SystemTime) -> Self {
        let mut copied = Self::base(original, now);
        copied.properties =
            copied.properties.with_type(task.kind.as_str().into()).with_message_id(task.id.as_str().into());
        let is_batch = original.content_type().as_ref().is_some_and(|it| it.as_str() == BATCH);
        if is_batch && task.content_type != ContentType::Batch {
            return copied.unbatched(task);
        }
        // If the publisher set no trace, the first worker may have started one: its copies stay in that trace.
        if header::trace(original.headers()).is_some() { copied } else { copied.traced(task) }
    }

    fn unbatched(mut self, record: &Envelope) -> Self {
        self.properties = self.properties.with_content_type(record.content_type.as_str().into());
        if let Some(timeout) = record.timeout {
            let ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
            self = self.with(header::TIMEOUT_MS, ms);
        }
        self.without(header::TRACEPARENT).without(header::TRACESTATE).traced(record)
    }

    fn traced(self, task: &Envelope) -> Self {
        let Some(trace) = &task.trace else { return self };
        let copied = self.with(header::TRACEPARENT, long(trace.parent()));
        match trace.state() {
            Some(state) => copied.with(header::TRACESTATE, long(state)),
            None => copied,
        }
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

    /// The original's properties without those that no copy may have.
    fn base(original: &BasicProperties, now: SystemTime) -> Self {
        let is_dropped = |name: &str| {
            name == "x-death"
                || name.starts_with("x-first-death-")
                || name.starts_with("x-last-death-")
                || name == "x-delivery-count"
                || name == "x-acquired-count"
                || name == "CC"
                || name == "BCC"
                || name == header::DELAY_MS
        };
        let mut headers = FieldTable::default();
        for (name, value) in original.headers().iter().flat_map(|table| table.inner()) {
            if !is_dropped(name.as_str()) {
                headers.insert(name.clone(), value.clone());
            }
        }
        if let Some(user) = original.user_id() {
            headers.insert(header::USER_ID.into(), long(user.as_str()));
        }
        if let Ok(Some(at)) = expires_at(original, now) {
            headers.insert(header::EXPIRES_AT.into(), at.into());
        }
        Self { properties: without_expiration_and_user(original).with_delivery_mode(2), headers }
    }

    /// Sets a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<AMQPValue>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Removes a header.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        if self.headers.contains_key(name) {
            self.headers = filtered(&self.headers, |key, _| key.as_str() != name);
        }
        self
    }

    /// Sets the number of attempts spent.
    #[must_use]
    pub fn attempt(self, spent: u32) -> Self {
        self.with(header::ATTEMPT, AMQPValue::LongUInt(spent))
    }

    /// Sets the due time, in milliseconds since 1970.
    #[must_use]
    pub fn not_before(self, at: i64) -> Self {
        self.with(header::NOT_BEFORE, at)
    }

    /// Sets the number of quarantine runs that ended with a crash of the worker, and the worker of the last.
    #[must_use]
    pub fn crashed(self, runs: u32, worker: &WorkerIncarnation) -> Self {
        self.with(header::QUARANTINE_RUNS, AMQPValue::LongUInt(runs))
            .with(header::QUARANTINE_WORKER, long(&worker.to_string()))
            .without(header::QUARANTINE_SINCE)
    }

    /// Removes all quarantine headers, for a task that leaves the quarantine or enters it again.
    #[must_use]
    pub fn unmarked(self) -> Self {
        self.without(header::QUARANTINE_RUNS)
            .without(header::QUARANTINE_WORKER)
            .without(header::QUARANTINE_SINCE)
    }

    /// Sets when workers without its handler began to pass it on in the quarantine, in milliseconds since 1970.
    #[must_use]
    pub fn handed_on(self, since: i64) -> Self {
        self.with(header::QUARANTINE_SINCE, since)
    }

    /// Sets the key to `id` if there is none, as [`NewTask::keyed`](super::NewTask::keyed) does.
    #[must_use]
    pub fn keyed(self, id: &str) -> Self {
        if self.headers.contains_key(header::KEY) { self } else { self.with(header::KEY, long(id)) }
    }

    /// Removes the due time.
    #[must_use]
    pub fn due_now(self) -> Self {
        self.without(header::NOT_BEFORE)
    }

    /// Sets the time of the first failure to `now`, unless the header already has a valid time.
    #[must_use]
    pub fn first_seen(self, now: SystemTime) -> Self {
        let present = self.headers.inner().get(header::FIRST_SEEN).and_then(header::integer);
        if present.is_some_and(|at| at >= 0) { self } else { self.with(header::FIRST_SEEN, epoch_ms(now)) }
    }

    /// Sets the headers of a dead letter. Control characters in `error` become spaces, and it is cut to 1,000
    /// bytes; `worker` and `lane` are cut to 255 bytes.
    #[must_use]
    pub fn dead(self, reason: DeadReason, error: &str, worker: &str, lane: &str, now: SystemTime) -> Self {
        let line: String = error.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let died_at = epoch_ms(now);
        self.with(header::REASON, long(reason.as_str()))
            .with(header::ERROR, long(cut(&line, MAX_ERROR)))
            .with(header::WORKER, long(cut(worker, MAX_NAME)))
            .with(header::LANE, long(cut(lane, MAX_NAME)))
            .with(header::DIED_AT, died_at)
            .first_seen(now)
    }

    /// Whether the copy is a dead letter.
    pub fn is_dead(&self) -> bool {
        self.headers.contains_key(header::REASON)
    }

    /// The minimal copy: only id, `type`, content type and the headers that say what happened to the task.
    ///
    /// For a connection whose frames are too small for the full copy. Its content header frame has at most
    /// 4,000 bytes; the smallest frame size that AMQP 0-9-1 permits is 4,096.
    #[must_use]
    pub fn bare(mut self) -> Self {
        let original = &self.properties;
        let mut properties = BasicProperties::default().with_delivery_mode(2);
        properties =
            original.message_id().clone().into_iter().fold(properties, BasicProperties::with_message_id);
        properties = original.kind().clone().into_iter().fold(properties, BasicProperties::with_type);
        self.properties =
            original.content_type().clone().into_iter().fold(properties, BasicProperties::with_content_type);
        let reported = [
            header::REASON,
            header::ERROR,
            header::WORKER,
            header::LANE,
            header::FIRST_SEEN,
            header::DIED_AT,
            header::ATTEMPT,
        ];
        let is_kept = |name: &ShortString, value: &AMQPValue| {
            let limit = if name.as_str() == header::ERROR { MAX_INTERNAL } else { MAX_NAME + ENTRY_OVERHEAD };
            reported.contains(&name.as_str()) && entry_bytes(name, value) <= limit
        };
        let dropped = self.headers.inner().iter().filter(|(name, value)| !is_kept(name, value));
        let (count, bytes) = dropped
            .fold((0, 0), |(count, bytes), (name, value)| (count + 1, bytes + entry_bytes(name, value)));
        let headers = filtered(&self.headers, is_kept);
        Self { headers, ..self }.add_dropped(count, bytes)
    }

    /// Drops foreign headers, the largest first, until at most [`Self::FOREIGN_BYTES`] of them are left.
    fn limit_foreign(self) -> Self {
        let mut foreign: Vec<_> = self
            .headers
            .inner()
            .iter()
            .map(|(name, value)| (name, entry_bytes(name, value)))
            .filter(|(name, bytes)| !is_internal(name.as_str()) || *bytes > MAX_INTERNAL)
            .collect();
        let mut total: usize = foreign.iter().map(|(_, bytes)| bytes).sum();
        if total <= Self::FOREIGN_BYTES {
            return self;
        }
        foreign.sort_by_key(|(name, bytes)| (Reverse(*bytes), *name));
        let before = total;
        let mut dropped = HashSet::new();
        for (name, bytes) in foreign {
            if total <= Self::FOREIGN_BYTES {
                break;
            }
            total -= bytes;
            dropped.insert(name.clone());
        }
        let headers = filtered(&self.headers, |name, _| !dropped.contains(name));
        Self { headers, ..self }.add_dropped(dropped.len(), before - total)
    }

    /// Adds to the counts of dropped headers, which cover all copies since the original.
    fn add_dropped(self, count: usize, bytes: usize) -> Self {
        let sum = |name, more: usize| {
            let before = self.headers.inner().get(name).and_then(header::integer).unwrap_or(0).max(0);
            before.saturating_add(i64::try_from(more).unwrap_or(i64::MAX))
        };
        let (count, bytes) = (sum(header::DROPPED, count), sum(header::DROPPED_BYTES, bytes));
        self.with(header::DROPPED, count).with(header::DROPPED_BYTES, bytes)
    }

    /// The finished properties. Their content header frame has at most 64 KiB for every original.
    pub fn into_properties(self) -> BasicProperties {
        self.limit_foreign().finished()
    }

    fn finished(self) -> BasicProperties {
        if self.headers.inner().is_empty() {
            self.properties
        } else {
            self.properties.with_headers(self.headers)
        }
    }
}

/// Whether Garenne defines the header. Only other headers are dropped to meet the size limit.
fn is_internal(name: &str) -> bool {
    header::ALL.contains(&name)
}

/// The headers for which `keep` is true.
fn filtered(headers: &FieldTable, keep: impl Fn(&ShortString, &AMQPValue) -> bool) -> FieldTable {
    let kept = headers.inner().iter().filter(|(name, value)| keep(name, value));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect::<BTreeMap<_, _>>().into()
}

/// The start of the text, at most `max_bytes`, cut at a character boundary.
fn cut(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// Builds the properties anew, because `BasicProperties` has no way to remove one.
fn without_expiration_and_user(original: &BasicProperties) -> BasicProperties {
    let mut kept = BasicProperties::default();
    macro_rules! keep {
        ($($read:ident => $write:ident),*) => {
            $(if let Some(value) = original.$read().clone() { kept = kept.$write(value); })*
        };
    }
    keep!(
        content_type => with_content_type,
        content_encoding => with_content_encoding,
        priority => with_priority,
        correlation_id => with_correlation_id,
        reply_to => with_reply_to,
        message_id => with_message_id,
        timestamp => with_timestamp,
        kind => with_type,
        app_id => with_app_id
    );
    kept
}

#[cfg(test)]
mod tests;
