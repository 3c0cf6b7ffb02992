//! Reading a task from a delivery.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use amq_protocol::{protocol::BasicProperties, types::FieldTable};
use thiserror::Error;

use super::{
    content_type::{BATCH, ContentType},
    header::{self, integer},
    id::{IdError, TaskId},
    incarnation::WorkerIncarnation,
    kind::{Kind, KindError},
    trace::TraceContext,
};

/// Milliseconds since 1970. Wire headers carry times in this form.
pub fn epoch_ms(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis().try_into().unwrap_or(i64::MAX))
}

/// Everything about a task but its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The task's id; a random one where the message had none (see [`Envelope::id_given`]).
    pub id: TaskId,
    /// Whether the publisher gave the id. Without one, effects are not tied to the task.
    pub id_given: bool,
    /// What is to be done.
    pub kind: Kind,
    /// How the body is written.
    pub content_type: ContentType,
    /// Attempts already spent.
    pub attempt: u32,
    /// Deadline once started, as the publisher asked; the kind's own bounds it.
    pub timeout: Option<Duration>,
    /// Not before, milliseconds since 1970.
    pub not_before: Option<i64>,
    /// Useless after, milliseconds since 1970.
    pub expires_at: Option<i64>,
    /// The group it belongs to.
    pub group: Option<String>,
    /// The publisher's correlation id.
    pub correlation_id: Option<String>,
    /// Where a result is wanted.
    pub reply_to: Option<String>,
    /// The trace it belongs to.
    pub trace: Option<TraceContext>,
    /// Runs in the quarantine that ended with the crash of their worker.
    pub quarantine_runs: u32,
    /// The worker of the last of these runs.
    pub quarantine_worker: Option<WorkerIncarnation>,
    /// Since when it is handed on in the quarantine for want of a handler, milliseconds since 1970.
    pub quarantine_since: Option<i64>,
    /// The lane it came from, where a worker noted that.
    pub lane: Option<String>,
    /// How many tasks stand between it and one that somebody published; 0 for such a one.
    pub depth: u32,
    /// When it was published, seconds since 1970, as the publisher says; a time that cannot be in seconds counts
    /// as none.
    pub timestamp: Option<u64>,
    /// The same in milliseconds since 1970, where the publisher is one of ours.
    pub published_at: Option<i64>,
    /// When an operator last put it back to work, milliseconds since 1970.
    pub replayed_at: Option<i64>,
    /// How often the broker says the message came back (quorum queues).
    pub delivery_count: u32,
}

/// A message that is no task. The text names the property or header and the limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The id.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The kind.
    #[error(transparent)]
    Kind(#[from] KindError),
    /// A header that should be a number.
    #[error("header {name} must be a whole number from 0 to {max}")]
    Number {
        /// The header.
        name: &'static str,
        /// The largest value.
        max: i64,
    },
    /// A header that should be a short text.
    #[error("header {name} must be text of 1 to {max} bytes", max = Envelope::MAX_TEXT)]
    Text {
        /// The header.
        name: &'static str,
    },
    /// The header that names a crashed worker.
    #[error("header {name} must be <worker>/<incarnation>", name = header::QUARANTINE_WORKER)]
    Incarnation,
    /// AMQP's `expiration` is decimal milliseconds in a string.
    #[error("property expiration must be milliseconds as decimal text, not {0:?}")]
    Expiration(String),
    /// A header that is either true or false.
    #[error("header {name} must be a boolean")]
    Flag {
        /// The header.
        name: &'static str,
    },
}

impl Envelope {
    /// The longest `garenne-timeout-ms` and `garenne-delay-ms`: 30 days.
    pub const MAX_MS: i64 = 30 * 24 * 3600 * 1000;
    /// The longest text header, in bytes.
    pub const MAX_TEXT: usize = 255;
    /// How much later than [`MAX_MS`](Self::MAX_MS) from now a due time may be, because clocks differ: a day.
    const CLOCKS_MS: i64 = 24 * 3600 * 1000;
    /// The largest `timestamp`, the end of the year 9999. A publisher with a later one counts in other units.
    const MAX_TIMESTAMP: u64 = 253_402_300_799;

    /// Reads a delivery. `known` says which kinds have a handler here: a routing key that is none of
    /// them gives way to the lane's `default_kind`.
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
        let id = properties.message_id().as_ref().map(|id| TaskId::parse(id.as_str())).transpose()?;
        let kind = match (properties.kind(), default_kind) {
            (Some(kind), _) => kind.as_str(),
            (None, Some(default)) if !known(routing_key) => default,
            (None, _) => routing_key,
        };
        let delay = number(headers, header::DELAY_MS, Self::MAX_MS)?.filter(|&ms| ms > 0);
        let latest = epoch_ms(now).saturating_add(Self::MAX_MS + Self::CLOCKS_MS);
        let not_before = number(headers, header::NOT_BEFORE, latest)?;
        Ok(Self {
            id_given: id.is_some(),
            id: id.unwrap_or_else(TaskId::random),
            kind: Kind::parse(kind)?,
            content_type: match properties.content_type().as_ref().map(|it| it.as_str()) {
                Some(it) if it.starts_with("application/senml+json") => ContentType::SenmlJson,
                Some(BATCH) => ContentType::Batch,
                _ => ContentType::Json,
            },
            attempt: small(headers, header::ATTEMPT)?,
            timeout: number(headers, header::TIMEOUT_MS, Self::MAX_MS)?
                .map(|ms| Duration::from_millis(ms.unsigned_abs())),
            not_before: not_before.or(delay.map(|ms| epoch_ms(now).saturating_add(ms))),
            expires_at: expires_at(properties, now)?,
            group: text(headers, header::GROUP)?,
            correlation_id: properties.correlation_id().as_ref().map(|it| it.as_str().to_owned()),
            reply_to: properties.reply_to().as_ref().map(|it| it.as_str().to_owned()),
            trace: header::trace(headers),
            quarantine_runs: small(headers, header::QUARANTINE_RUNS)?,
            quarantine_worker: incarnation(headers)?,
            quarantine_since: number(headers, header::QUARANTINE_SINCE, i64::MAX)?,
            lane: text(headers, header::LANE)?,
            depth: small(headers, header::DEPTH)?,
            timestamp: published_at(properties),
            published_at: number(headers, header::PUBLISHED_AT, i64::MAX)?,
            replayed_at: number(headers, header::REPLAYED_AT, i64::MAX)?,
            delivery_count: header::get(headers, "x-delivery-count")
                .and_then(integer)
                .and_then(|n| n.try_into().ok())
                .unwrap_or(0),
        })
    }

    /// The id of its trace, for logs.
    pub fn trace_id(&self) -> Option<&str> {
        self.trace.as_ref().map(TraceContext::trace_id)
    }

    /// Whether its time was up at `now`.
    pub fn expired(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|at| at <= epoch_ms(now))
    }

    /// The first millisecond since 1970 at which it may have been published, as its publisher says: the
    /// header of ours, else the second that AMQP's `timestamp` names.
    pub fn published_ms(&self) -> Option<i64> {
        let second = |s: u64| i64::try_from(s).unwrap_or(i64::MAX).saturating_mul(1000);
        self.published_at.or_else(|| self.timestamp.map(second))
    }

    /// How long it still has to wait at `now`; nothing when it may start.
    pub fn due_in(&self, now: SystemTime) -> Option<Duration> {
        let wait = self.not_before?.saturating_sub(epoch_ms(now));
        (wait > 0).then(|| Duration::from_millis(wait.unsigned_abs()))
    }
}

/// The absolute expiry: our own header, else AMQP's relative `expiration` counted from `timestamp`
/// where the publisher gave one, else from now.
pub(super) fn expires_at(properties: &BasicProperties, now: SystemTime) -> Result<Option<i64>, Malformed> {
    if let Some(at) = number(properties.headers(), header::EXPIRES_AT, i64::MAX)? {
        return Ok(Some(at));
    }
    let Some(expiration) = properties.expiration() else { return Ok(None) };
    // Unsigned, as the broker has it: a time before 1970 could not be written to a copy.
    let ms: u64 =
        expiration.as_str().parse().map_err(|_| Malformed::Expiration(expiration.as_str().to_owned()))?;
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    let sent = published_at(properties)
        .map_or(epoch_ms(now), |s| s.saturating_mul(1000).try_into().unwrap_or(i64::MAX));
    Ok(Some(sent.saturating_add(ms)))
}

/// `timestamp`, where it can be in seconds.
fn published_at(properties: &BasicProperties) -> Option<u64> {
    properties.timestamp().filter(|at| *at <= Envelope::MAX_TIMESTAMP)
}

fn number(headers: &Option<FieldTable>, name: &'static str, max: i64) -> Result<Option<i64>, Malformed> {
    header::get(headers, name)
        .map(|value| integer(value).filter(|n| (0..=max).contains(n)).ok_or(Malformed::Number { name, max }))
        .transpose()
}

fn small(headers: &Option<FieldTable>, name: &'static str) -> Result<u32, Malformed> {
    number(headers, name, 1_000_000).map(|n| n.and_then(|n| n.try_into().ok()).unwrap_or(0))
}

fn incarnation(headers: &Option<FieldTable>) -> Result<Option<WorkerIncarnation>, Malformed> {
    let Some(value) = header::get(headers, header::QUARANTINE_WORKER) else { return Ok(None) };
    let read = header::text(value).and_then(|text| WorkerIncarnation::parse(&text));
    read.map(Some).ok_or(Malformed::Incarnation)
}

fn text(headers: &Option<FieldTable>, name: &'static str) -> Result<Option<String>, Malformed> {
    let Some(value) = header::get(headers, name) else { return Ok(None) };
    header::text(value)
        .filter(|text| (1..=Envelope::MAX_TEXT).contains(&text.len()))
        .map(Some)
        .ok_or(Malformed::Text { name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::header::long;

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn read(key: &str, properties: BasicProperties) -> Result<Envelope, Malformed> {
        Envelope::read(key, &properties, Some("reading.process"), |kind| kind.starts_with("bench."), now())
    }

    fn headers(pairs: &[(&str, amq_protocol::types::AMQPValue)]) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, value) in pairs {
            table.insert((*name).into(), value.clone());
        }
        BasicProperties::default().with_headers(table)
    }

    #[test]
    fn a_routing_key_is_enough() {
        let task = read("bench.noop", BasicProperties::default()).unwrap();
        assert_eq!(task.kind.as_str(), "bench.noop");
        assert!(!task.id_given);
        assert_eq!(task.attempt, 0);
    }

    #[test]
    fn a_foreign_routing_key_gives_way_to_the_lanes_default_and_type_beats_both() {
        assert_eq!(read("some.topic", BasicProperties::default()).unwrap().kind.as_str(), "reading.process");
        let typed = BasicProperties::default().with_type("odd.kind".into());
        assert_eq!(read("bench.noop", typed).unwrap().kind.as_str(), "odd.kind");
    }

    #[test]
    fn numbers_are_taken_in_any_integer_type_and_refused_by_name() {
        let task = read("bench.noop", headers(&[(header::TIMEOUT_MS, 250_u8.into())])).unwrap();
        assert_eq!(task.timeout, Some(Duration::from_millis(250)));
        let task = read("bench.noop", headers(&[(header::ATTEMPT, long("3"))])).unwrap();
        assert_eq!(task.attempt, 3);
        let error = read("bench.noop", headers(&[(header::TIMEOUT_MS, long("soon"))])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "header garenne-timeout-ms must be a whole number from 0 to 2592000000"
        );
    }

    #[test]
    fn a_delay_becomes_a_time_and_keeps_it() {
        let task = read("bench.noop", headers(&[(header::DELAY_MS, 1500_i32.into())])).unwrap();
        assert_eq!(task.due_in(now()), Some(Duration::from_millis(1500)));
        assert_eq!(task.due_in(now() + Duration::from_secs(2)), None);
    }

    #[test]
    fn the_time_of_publishing_is_exact_where_our_header_says_it() {
        let stamped = |seconds: u64| BasicProperties::default().with_timestamp(seconds);
        assert_eq!(read("bench.noop", BasicProperties::default()).unwrap().published_ms(), None);
        assert_eq!(read("bench.noop", stamped(7)).unwrap().published_ms(), Some(7000));
        // Nanoseconds are no seconds: such a time counts as absent.
        assert_eq!(read("bench.noop", stamped(u64::MAX)).unwrap().published_ms(), None);
        let exact = headers(&[(header::PUBLISHED_AT, 7123_i64.into())]).with_timestamp(7);
        assert_eq!(read("bench.noop", exact).unwrap().published_ms(), Some(7123));
    }

    #[test]
    fn the_marks_of_the_quarantine_are_validated() {
        const LIFE: &str = "0195f0c2-7a10-7000-8000-00000000002a";
        let marks = [
            (header::QUARANTINE_RUNS, 1_u32.into()),
            (header::QUARANTINE_WORKER, long(&format!("w-1/{LIFE}"))),
            (header::QUARANTINE_SINCE, 5_i64.into()),
        ];
        let task = read("bench.noop", headers(&marks)).unwrap();
        let worker = task.quarantine_worker.unwrap();
        assert_eq!((worker.worker(), worker.incarnation()), ("w-1", LIFE));
        assert_eq!((task.quarantine_runs, task.quarantine_since), (1, Some(5)));
        for forged in [long("w-1"), long(&"x".repeat(4000)), true.into()] {
            let refused = read("bench.noop", headers(&[(header::QUARANTINE_WORKER, forged)])).unwrap_err();
            assert_eq!(
                refused.to_string(),
                "header garenne-quarantine-worker must be <worker>/<incarnation>"
            );
        }
    }

    #[test]
    fn a_negative_expiration_is_refused() {
        let refused = read("bench.noop", BasicProperties::default().with_expiration("-1000".into()));
        assert_eq!(refused.unwrap_err(), Malformed::Expiration("-1000".to_owned()));
    }

    #[test]
    fn expiration_counts_from_the_timestamp_where_there_is_one() {
        let stamped =
            BasicProperties::default().with_expiration("5000".into()).with_timestamp(1_800_000_000 - 4);
        let task = read("bench.noop", stamped).unwrap();
        assert!(!task.expired(now()));
        assert!(task.expired(now() + Duration::from_secs(1)));
    }

    #[test]
    fn a_timestamp_that_cannot_be_in_seconds_counts_as_none() {
        for later in [1_800_000_000_000, 1_800_000_000_000_000_000, u64::MAX] {
            let stamped = BasicProperties::default().with_expiration("5000".into()).with_timestamp(later);
            let task = read("bench.noop", stamped).unwrap();
            assert_eq!((task.timestamp, task.expires_at), (None, Some(1_800_000_005_000)), "{later}");
        }
    }

    #[test]
    fn a_due_time_that_no_worker_writes_is_refused() {
        let due = |at: i64| read("bench.noop", headers(&[(header::NOT_BEFORE, at.into())]));
        let latest = 1_800_000_000_000 + 31 * 24 * 3600 * 1000;
        assert_eq!(due(latest).unwrap().not_before, Some(latest));
        let max = latest;
        assert_eq!(due(latest + 1).unwrap_err(), Malformed::Number { name: header::NOT_BEFORE, max });
        assert_eq!(due(i64::MAX).unwrap_err(), Malformed::Number { name: header::NOT_BEFORE, max });
        assert_eq!(due(-1).unwrap_err(), Malformed::Number { name: header::NOT_BEFORE, max });
    }
}
