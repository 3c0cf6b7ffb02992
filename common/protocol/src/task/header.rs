//! Names of the message headers that Garenne reads and writes, and functions that read their values.

use amq_protocol::types::{AMQPValue, FieldTable};

use super::TraceContext;

/// Maximum run time of an attempt, in milliseconds.
pub const TIMEOUT_MS: &str = "garenne-timeout-ms";
/// Delay before the start, in milliseconds. The first worker that reads the task replaces it by [`NOT_BEFORE`].
pub const DELAY_MS: &str = "garenne-delay-ms";
/// Due time in milliseconds since 1970. Workers write it when they defer a task.
pub const NOT_BEFORE: &str = "garenne-not-before";
/// The task's group. Tasks of one group can be stopped, paused and awaited together.
pub const GROUP: &str = "garenne-group";
/// Selects the queue in a lane with several: tasks with equal keys go to the same queue, and all tasks without
/// a key go to one queue.
pub const KEY: &str = "garenne-key";
/// Number of attempts spent.
pub const ATTEMPT: &str = "garenne-attempt";
/// Expiry time in milliseconds since 1970. Replaces `expiration` in a copy.
pub const EXPIRES_AT: &str = "garenne-expires-at";
/// Replaces `user_id` in a copy, because another user publishes the copy.
pub const USER_ID: &str = "garenne-user-id";
/// Number of quarantine runs that ended with a crash of the worker.
pub const QUARANTINE_RUNS: &str = "garenne-quarantine-runs";
/// The worker that crashed in the last of these runs, as `<worker>/<incarnation>`.
pub const QUARANTINE_WORKER: &str = "garenne-quarantine-worker";
/// When workers without a handler for the task began to pass it on in the quarantine, in milliseconds since 1970.
pub const QUARANTINE_SINCE: &str = "garenne-quarantine-since";
/// When a task of a group was published, in milliseconds since 1970; the property `timestamp` has seconds.
pub const PUBLISHED_AT: &str = "garenne-published-at";
/// Length of the chain of follow-ups that led to the task: 0 for a task that a client published, the parent's
/// depth plus 1 for a follow-up.
pub const DEPTH: &str = "garenne-depth";
/// The id of the task whose follow-up this is.
pub const PARENT: &str = "garenne-parent";
/// Why the task is a dead letter; see [`DeadReason`](super::DeadReason).
pub const REASON: &str = "garenne-reason";
/// The error of a dead letter, one line.
pub const ERROR: &str = "garenne-error";
/// The worker that published the dead letter.
pub const WORKER: &str = "garenne-worker";
/// When the task failed first, in milliseconds since 1970.
pub const FIRST_SEEN: &str = "garenne-first-seen";
/// When the task became a dead letter, in milliseconds since 1970.
pub const DIED_AT: &str = "garenne-died-at";
/// The lane that the task came from. A replay, and a retry from the quarantine, publish it to this lane.
pub const LANE: &str = "garenne-lane";
/// When an operator last replayed the dead letter, in milliseconds since 1970. Earlier stop directives no longer
/// apply to it.
pub const REPLAYED_AT: &str = "garenne-replayed-at";
/// Number of foreign headers that copies dropped because all together were too large.
pub const DROPPED: &str = "garenne-dropped-headers";
/// Encoded size of the dropped headers in bytes.
pub const DROPPED_BYTES: &str = "garenne-dropped-bytes";
/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
/// W3C trace state.
pub const TRACESTATE: &str = "tracestate";

/// Every header that Garenne defines or interprets.
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

/// The value as an integer: any AMQP integer type, a timestamp, or decimal text. `None` for other types and
/// for values outside `i64`.
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

/// The value as text: a short string or a UTF-8 long string.
pub fn text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

/// The header `name`. `None` if it or the whole table is absent.
pub fn get<'a>(headers: &'a Option<FieldTable>, name: &str) -> Option<&'a AMQPValue> {
    headers.as_ref()?.inner().get(name)
}

/// The trace context in the headers. An invalid one counts as absent.
pub fn trace(headers: &Option<FieldTable>) -> Option<TraceContext> {
    let parent = text(get(headers, TRACEPARENT)?)?;
    TraceContext::parse(&parent, get(headers, TRACESTATE).and_then(text).as_deref())
}

/// A header value of type long string.
pub fn long(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.as_bytes().into())
}
