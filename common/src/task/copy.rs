//! What a copy of a task keeps, drops and translates.
//!
//! A copied `x-death` trips the broker's cycle detection and the message vanishes; `CC`/`BCC`
//! deliver it twice; a foreign `user_id` closes the channel; a kept `expiration` shortens the delay
//! queue it waits in.

use std::time::SystemTime;

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};

use super::{
    envelope::{ContentType, Envelope, epoch_ms, expires_at},
    header::{self, long},
    outcome::DeadReason,
    pack::PACK,
};

/// The properties of a confirmed copy, under construction. The body is copied as it is.
#[derive(Clone, Debug)]
pub struct Copied {
    properties: BasicProperties,
    headers: FieldTable,
}

impl Copied {
    /// Starts from the properties the task arrived with. The copy always carries `type` (its routing
    /// key will be a queue's name) and an id, so that all later copies are the same task. A record of a
    /// pack becomes a message of its own: what it says of itself takes the place of the pack's word.
    pub fn of(original: &BasicProperties, task: &Envelope, now: SystemTime) -> Self {
        let mut copied = Self::kept(original, now);
        copied.properties =
            copied.properties.with_type(task.kind.as_str().into()).with_message_id(task.id.as_str().into());
        let of_pack = original.content_type().as_ref().is_some_and(|it| it.as_str() == PACK);
        if of_pack && task.content_type != ContentType::Pack {
            return copied.unpacked(task);
        }
        // A task without a trace may have got one from its first worker; its copies belong to that one.
        if header::trace(original.headers()).is_some() { copied } else { copied.traced(task) }
    }

    fn unpacked(mut self, record: &Envelope) -> Self {
        self.properties = self.properties.with_content_type(record.content_type.as_str().into());
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
        if original.kind().is_none() && !routing_key.is_empty() {
            copied.properties = copied.properties.with_type(routing_key.into());
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
        let kept = self.headers.inner().iter().filter(|(key, _)| key.as_str() != name);
        self.headers = kept
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect::<std::collections::BTreeMap<_, _>>()
            .into();
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

    /// Marks a run alone as begun, the `runs`-th.
    #[must_use]
    pub fn armed(self, runs: u32) -> Self {
        self.with(header::SUSPECT_RUNS, AMQPValue::LongUInt(runs)).with(header::SUSPECT_ARMED, true)
    }

    /// Takes that mark off; `runs` alone are known.
    #[must_use]
    pub fn disarmed(self, runs: u32) -> Self {
        let kept = self.without(header::SUSPECT_ARMED);
        if runs == 0 {
            kept.without(header::SUSPECT_RUNS)
        } else {
            kept.with(header::SUSPECT_RUNS, AMQPValue::LongUInt(runs))
        }
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

    /// When a worker first saw it fail; the first mark stays.
    #[must_use]
    pub fn first_seen(self, now: SystemTime) -> Self {
        if self.headers.contains_key(header::FIRST_SEEN) {
            self
        } else {
            self.with(header::FIRST_SEEN, epoch_ms(now))
        }
    }

    /// The marks of a dead letter. `error` is cut to one line of at most 1,000 bytes.
    #[must_use]
    pub fn dead(self, reason: DeadReason, error: &str, worker: &str, lane: &str, now: SystemTime) -> Self {
        let line: String = error.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1000).collect();
        let died_at = epoch_ms(now);
        self.with(header::REASON, long(reason.as_str()))
            .with(header::ERROR, long(&line))
            .with(header::WORKER, long(worker))
            .with(header::LANE, long(lane))
            .with(header::DIED_AT, died_at)
            .first_seen(now)
    }

    /// The finished properties.
    pub fn into_properties(self) -> BasicProperties {
        if self.headers.inner().is_empty() {
            self.properties
        } else {
            self.properties.with_headers(self.headers)
        }
    }
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
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::task::{TraceContext, read_pack};

    #[test]
    fn a_copy_drops_what_would_lose_or_double_it_and_keeps_the_rest() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        let mut table = FieldTable::default();
        for name in ["x-death", "x-first-death-reason", "x-delivery-count", "CC", "BCC", "mine"] {
            table.insert(name.into(), long("v"));
        }
        let original = BasicProperties::default()
            .with_headers(table)
            .with_user_id("guest".into())
            .with_expiration("2000".into())
            .with_reply_to("answers".into())
            .with_priority(3);
        let task = Envelope::read("bench.noop", &original, None, |_| true, now).unwrap();
        let copy = Copied::of(&original, &task, now).attempt(2).into_properties();

        let names: Vec<_> =
            copy.headers().as_ref().unwrap().inner().keys().map(|k| k.as_str().to_owned()).collect();
        assert_eq!(names, ["garenne-attempt", "garenne-expires-at", "garenne-user-id", "mine"]);
        assert_eq!(
            header::get(copy.headers(), header::EXPIRES_AT).and_then(header::integer),
            Some(1_002_000)
        );
        assert_eq!(copy.user_id(), &None);
        assert_eq!(copy.expiration(), &None);
        assert_eq!(copy.kind().as_ref().unwrap().as_str(), "bench.noop");
        assert_eq!(copy.message_id().as_ref().unwrap().as_str(), task.id.as_str());
        assert_eq!(copy.reply_to().as_ref().unwrap().as_str(), "answers");
        assert_eq!(copy.priority(), &Some(3));

        let again = Envelope::read("garenne.retry.fast.1s", &copy, None, |_| true, now).unwrap();
        assert_eq!(
            (again.kind.as_str(), again.attempt, again.expires_at),
            ("bench.noop", 2, Some(1_002_000))
        );
    }

    #[test]
    fn a_record_of_a_pack_leaves_as_the_message_its_sender_could_have_published() {
        let mut table = FieldTable::default();
        table.insert("mine".into(), long("v"));
        table.insert(header::TRACEPARENT.into(), long("the pack's"));
        let pack = BasicProperties::default()
            .with_message_id("pack".into())
            .with_content_type(PACK.into())
            .with_headers(table);
        let whole = Envelope::read("k", &pack, None, |_| true, UNIX_EPOCH).unwrap();
        let shown = |task: &Envelope| {
            let copy = Copied::of(&pack, task, UNIX_EPOCH).into_properties();
            let text = |name| header::get(copy.headers(), name).and_then(header::text);
            let written = copy.content_type().as_ref().unwrap().to_string();
            (
                copy.message_id().as_ref().unwrap().to_string(),
                written,
                text("mine"),
                text(header::TRACEPARENT),
            )
        };
        let record = |id: &str, written: &str, trace: Option<&str>| {
            (id.to_owned(), written.to_owned(), Some("v".to_owned()), trace.map(str::to_owned))
        };
        assert_eq!(shown(&whole), record("pack", PACK, Some("the pack's")));
        let theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let body = format!(
            r#"[{{"id":"a","senml":true,"payload":[]}},{{"id":"b","traceparent":"{theirs}","payload":{{}}}}]"#
        );
        let records: Vec<_> =
            read_pack(body.as_bytes()).unwrap().iter().map(|it| shown(&it.envelope(&whole))).collect();
        let expected =
            [record("a", "application/senml+json", None), record("b", "application/json", Some(theirs))];
        assert_eq!(records, expected);
    }

    #[test]
    fn a_copy_belongs_to_the_trace_that_its_task_came_with_or_was_given() {
        let given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let copied_from = |parent: &str| {
            let mut table = FieldTable::default();
            table.insert(header::TRACEPARENT.into(), long(parent));
            let original = BasicProperties::default().with_headers(table);
            let mut task = Envelope::read("k", &original, None, |_| true, UNIX_EPOCH).unwrap();
            task.trace = task.trace.or_else(|| TraceContext::parse(given, Some("v=1")));
            let copy = Copied::of(&original, &task, UNIX_EPOCH).into_properties();
            let text = |name| header::get(copy.headers(), name).and_then(header::text);
            (text(header::TRACEPARENT).unwrap(), text(header::TRACESTATE))
        };
        assert_eq!(copied_from("unreadable"), (given.to_owned(), Some("v=1".to_owned())));
        let later = given.replace("00-", "cc-");
        assert_eq!(copied_from(&later), (later, None));
    }

    #[test]
    fn a_dead_letters_error_is_one_line() {
        let copy = Copied::verbatim(&BasicProperties::default(), "some.key", UNIX_EPOCH)
            .dead(DeadReason::Rejected, "first\nsecond", "w", "fast", UNIX_EPOCH)
            .into_properties();
        let error = header::get(copy.headers(), header::ERROR).and_then(header::text);
        assert_eq!(error.as_deref(), Some("first second"));
    }
}
