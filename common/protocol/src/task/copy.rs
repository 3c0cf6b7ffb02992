//! What a copy of a task keeps, drops and translates.
//!
//! A copied `x-death` trips the broker's cycle detection and the message vanishes; `CC`/`BCC`
//! deliver it twice; a foreign `user_id` closes the channel; a kept `expiration` shortens the delay
//! queue it waits in. Headers beyond [`Copied::FOREIGN_BYTES`] could make the content header larger than a frame,
//! which ends the connection.

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

/// The properties of a confirmed copy, under construction. The body is copied as it is.
#[derive(Clone, Debug)]
pub struct Copied {
    properties: BasicProperties,
    headers: FieldTable,
}

/// The longest error text and the longest other text that a worker writes into a dead letter, bytes.
const MAX_ERROR: usize = 1000;
const MAX_NAME: usize = 255;
/// An internal header that is larger than this was not written by a worker, and counts as foreign.
const MAX_INTERNAL: usize = 1200;

impl Copied {
    /// The most bytes of foreign headers that a copy keeps.
    pub const FOREIGN_BYTES: usize = 32 * 1024;

    /// Starts from the properties the task arrived with. The copy always carries `type` (its routing
    /// key will be a queue's name) and an id, so that all later copies are the same task. A record of a
    /// pack becomes a message of its own: what it says of itself takes the place of the pack's word.
    pub fn of(original: &BasicProperties, task: &Envelope, now: SystemTime) -> Self {
        let mut copied = Self::kept(original, now);
        copied.properties =
            copied.properties.with_type(task.kind.as_str().into()).with_message_id(task.id.as_str().into());
        let of_pack = original.content_type().as_ref().is_some_and(|it| it.as_str() == BATCH);
        if of_pack && task.content_type != ContentType::Batch {
            return copied.unpacked(task);
        }
        // A task without a trace may have got one from its first worker; its copies belong to that one.
        if header::trace(original.headers()).is_some() { copied } else { copied.traced(task) }
    }

    fn unpacked(mut self, record: &Envelope) -> Self {
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

    /// The same for a message that could not be read as a task: what it says of itself is kept, and a
    /// missing `type` is filled from its routing key, which the copy's will not be.
    pub fn verbatim(original: &BasicProperties, routing_key: &str, now: SystemTime) -> Self {
        let mut copied = Self::kept(original, now);
        if original.kind().is_none()
            && !routing_key.is_empty()
            && let Ok(kind) = ShortString::try_new(routing_key)
        {
            copied.properties = copied.properties.with_type(kind);
        }
        copied
    }

    fn kept(original: &BasicProperties, now: SystemTime) -> Self {
        let dropped = |name: &str| {
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
            if !dropped(name.as_str()) {
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
            self.headers = only(&self.headers, |key, _| key.as_str() != name);
        }
        self
    }

    /// Attempts spent so far.
    #[must_use]
    pub fn attempt(self, spent: u32) -> Self {
        self.with(header::ATTEMPT, AMQPValue::LongUInt(spent))
    }

    /// Not before this time, milliseconds since 1970.
    #[must_use]
    pub fn not_before(self, at: i64) -> Self {
        self.with(header::NOT_BEFORE, at)
    }

    /// Counts a run in the quarantine that ended with the crash of its worker: the `runs`-th.
    #[must_use]
    pub fn crashed(self, runs: u32, worker: &WorkerIncarnation) -> Self {
        self.with(header::QUARANTINE_RUNS, AMQPValue::LongUInt(runs))
            .with(header::QUARANTINE_WORKER, long(&worker.to_string()))
            .without(header::QUARANTINE_SINCE)
    }

    /// Takes every mark of the quarantine off: what leaves it, or enters it anew, starts without any.
    #[must_use]
    pub fn unmarked(self) -> Self {
        self.without(header::QUARANTINE_RUNS)
            .without(header::QUARANTINE_WORKER)
            .without(header::QUARANTINE_SINCE)
    }

    /// Notes since when it is handed on in the quarantine, milliseconds since 1970.
    #[must_use]
    pub fn handed_on(self, since: i64) -> Self {
        self.with(header::QUARANTINE_SINCE, since)
    }

    /// Gives it a key, its id, where it has none, as [`NewTask::keyed`](super::NewTask::keyed) does.
    #[must_use]
    pub fn keyed(self, id: &str) -> Self {
        if self.headers.contains_key(header::KEY) { self } else { self.with(header::KEY, long(id)) }
    }

    /// Takes a due time off again.
    #[must_use]
    pub fn due_now(self) -> Self {
        self.without(header::NOT_BEFORE)
    }

    /// When a worker first saw it fail; the first mark stays, if it is a time.
    #[must_use]
    pub fn first_seen(self, now: SystemTime) -> Self {
        let known = self.headers.inner().get(header::FIRST_SEEN).and_then(header::integer);
        if known.is_some_and(|at| at >= 0) { self } else { self.with(header::FIRST_SEEN, epoch_ms(now)) }
    }

    /// The marks of a dead letter. `error` is cut to one line of at most 1,000 bytes.
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

    /// Whether it is a dead letter.
    pub fn is_dead(&self) -> bool {
        self.headers.contains_key(header::REASON)
    }

    /// The least of it that still names the task and says what became of it, for a connection whose frames are
    /// too small for the rest: at most 4,000 bytes, which fit the smallest frame that can be agreed on.
    #[must_use]
    pub fn bare(mut self) -> Self {
        let original = &self.properties;
        let mut properties = BasicProperties::default().with_delivery_mode(2);
        properties =
            original.message_id().clone().into_iter().fold(properties, BasicProperties::with_message_id);
        properties = original.kind().clone().into_iter().fold(properties, BasicProperties::with_type);
        self.properties =
            original.content_type().clone().into_iter().fold(properties, BasicProperties::with_content_type);
        let told = [
            header::REASON,
            header::ERROR,
            header::WORKER,
            header::LANE,
            header::FIRST_SEEN,
            header::DIED_AT,
            header::ATTEMPT,
        ];
        let stays = |name: &ShortString, value: &AMQPValue| {
            let most = if name.as_str() == header::ERROR { MAX_INTERNAL } else { MAX_NAME + 45 };
            told.contains(&name.as_str()) && entry_bytes(name, value) <= most
        };
        let left_out = self.headers.inner().iter().filter(|(name, value)| !stays(name, value));
        let (count, bytes) = left_out
            .fold((0, 0), |(count, bytes), (name, value)| (count + 1, bytes + entry_bytes(name, value)));
        let headers = only(&self.headers, stays);
        Self { headers, ..self }.noting(count, bytes)
    }

    /// Leaves out foreign headers, the largest first, until no more than [`Self::FOREIGN_BYTES`] of them are left.
    fn bounded(self) -> Self {
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
        let mut left_out = HashSet::new();
        for (name, bytes) in foreign {
            if total <= Self::FOREIGN_BYTES {
                break;
            }
            total -= bytes;
            left_out.insert(name.clone());
        }
        let headers = only(&self.headers, |name, _| !left_out.contains(name));
        Self { headers, ..self }.noting(left_out.len(), before - total)
    }

    /// Notes that so many headers were left out, in addition to those of the copy that this is a copy of.
    fn noting(self, count: usize, bytes: usize) -> Self {
        let sum = |name, more: usize| {
            let before = self.headers.inner().get(name).and_then(header::integer).unwrap_or(0).max(0);
            before.saturating_add(i64::try_from(more).unwrap_or(i64::MAX))
        };
        let (count, bytes) = (sum(header::DROPPED, count), sum(header::DROPPED_BYTES, bytes));
        self.with(header::DROPPED, count).with(header::DROPPED_BYTES, bytes)
    }

    /// The finished properties. Their content header fits a frame of 64 KiB, whatever the original had.
    pub fn into_properties(self) -> BasicProperties {
        self.bounded().finished()
    }

    fn finished(self) -> BasicProperties {
        if self.headers.inner().is_empty() {
            self.properties
        } else {
            self.properties.with_headers(self.headers)
        }
    }
}

/// Whether Garenne gives the header a meaning: those are kept before any other.
fn is_internal(name: &str) -> bool {
    header::ALL.contains(&name)
}

/// The headers for which `stays` holds.
fn only(headers: &FieldTable, stays: impl Fn(&ShortString, &AMQPValue) -> bool) -> FieldTable {
    let kept = headers.inner().iter().filter(|(name, value)| stays(name, value));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect::<BTreeMap<_, _>>().into()
}

/// The text's first bytes, at most so many and no broken character.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The client's properties can be added to but not taken from, so the kept ones are set anew.
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
