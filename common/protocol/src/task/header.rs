//! The headers Garenne reads and writes, and how to read a number that any client may have written
//! in any of AMQP's integer types.

use amq_protocol::types::{AMQPValue, FieldTable};

use super::TraceContext;

/// Deadline once started, milliseconds.
pub const TIMEOUT_MS: &str = "garenne-timeout-ms";
/// Not before this many milliseconds from now; becomes [`NOT_BEFORE`] at first sight.
pub const DELAY_MS: &str = "garenne-delay-ms";
/// Not before this time, milliseconds since 1970; written by workers while a task is put off.
pub const NOT_BEFORE: &str = "garenne-not-before";
/// Tasks of one group can be stopped, paused and awaited together.
pub const GROUP: &str = "garenne-group";
/// Tasks with the same key go to the same queue of a lane that has several; those without all to one.
pub const KEY: &str = "garenne-key";
/// Attempts already spent.
pub const ATTEMPT: &str = "garenne-attempt";
/// Absolute expiry, milliseconds since 1970: what `expiration` becomes in a copy.
pub const EXPIRES_AT: &str = "garenne-expires-at";
/// What `user_id` becomes in a copy, which another user publishes.
pub const USER_ID: &str = "garenne-user-id";
/// Runs in the quarantine that ended with the crash of their worker.
pub const QUARANTINE_RUNS: &str = "garenne-quarantine-runs";
/// The worker that crashed last while it ran the task in the quarantine, `<worker>/<incarnation>`.
pub const QUARANTINE_WORKER: &str = "garenne-quarantine-worker";
/// Since when the task is handed on in the quarantine for want of a handler, milliseconds since 1970.
pub const QUARANTINE_SINCE: &str = "garenne-quarantine-since";
/// When a task of a group was published, milliseconds since 1970; `timestamp` has seconds only.
pub const PUBLISHED_AT: &str = "garenne-published-at";
/// How many tasks stand between it and one that somebody published: a follow-up's is its parent's and
/// one more.
pub const DEPTH: &str = "garenne-depth";
/// The id of the task that started it.
pub const PARENT: &str = "garenne-parent";
/// Why it is dead.
pub const REASON: &str = "garenne-reason";
/// The error, one line.
pub const ERROR: &str = "garenne-error";
/// The worker that gave it up.
pub const WORKER: &str = "garenne-worker";
/// First time a worker saw it fail, milliseconds since 1970.
pub const FIRST_SEEN: &str = "garenne-first-seen";
/// When it was declared dead, milliseconds since 1970.
pub const DIED_AT: &str = "garenne-died-at";
/// The lane it came from, so that a replay or a quarantined task's retry finds its way back.
pub const LANE: &str = "garenne-lane";
/// When an operator put a dead letter back to work, milliseconds since 1970: stop orders from before that
/// are done with.
pub const REPLAYED_AT: &str = "garenne-replayed-at";
/// How many foreign headers were left out of a copy, because they are too large together.
pub const DROPPED: &str = "garenne-dropped-headers";
/// How many bytes these headers had.
pub const DROPPED_BYTES: &str = "garenne-dropped-bytes";
/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
/// W3C trace state.
pub const TRACESTATE: &str = "tracestate";

/// Every header that has a meaning here.
pub const ALL: [&str; 25] = [
    TIMEOUT_MS,
    DELAY_MS,
    NOT_BEFORE,
    GROUP,
    KEY,
    ATTEMPT,
    EXPIRES_AT,
    USER_ID,
    QUARANTINE_RUNS,
    QUARANTINE_WORKER,
    QUARANTINE_SINCE,
    PUBLISHED_AT,
    DEPTH,
    PARENT,
    REASON,
    ERROR,
    WORKER,
    FIRST_SEEN,
    DIED_AT,
    LANE,
    REPLAYED_AT,
    DROPPED,
    DROPPED_BYTES,
    TRACEPARENT,
    TRACESTATE,
];

/// A whole number, whatever integer type the client chose; decimal text is taken too.
pub fn integer(value: &AMQPValue) -> Option<i64> {
    match value {
        AMQPValue::ShortShortInt(n) => Some((*n).into()),
        AMQPValue::ShortShortUInt(n) => Some((*n).into()),
        AMQPValue::ShortInt(n) => Some((*n).into()),
        AMQPValue::ShortUInt(n) => Some((*n).into()),
        AMQPValue::LongInt(n) => Some((*n).into()),
        AMQPValue::LongUInt(n) => Some((*n).into()),
        AMQPValue::LongLongInt(n) => Some(*n),
        AMQPValue::Timestamp(n) => (*n).try_into().ok(),
        AMQPValue::LongString(_) | AMQPValue::ShortString(_) => text(value)?.trim().parse().ok(),
        _ => None,
    }
}

/// A text header.
pub fn text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

/// The header of that name, where there is a table at all.
pub fn get<'a>(headers: &'a Option<FieldTable>, name: &str) -> Option<&'a AMQPValue> {
    headers.as_ref()?.inner().get(name)
}

/// The trace that the headers name; what cannot be read is as good as none.
pub fn trace(headers: &Option<FieldTable>) -> Option<TraceContext> {
    let parent = text(get(headers, TRACEPARENT)?)?;
    TraceContext::parse(&parent, get(headers, TRACESTATE).and_then(text).as_deref())
}

/// A text for a header.
pub fn long(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.as_bytes().into())
}
