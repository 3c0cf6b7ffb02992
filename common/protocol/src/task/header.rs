//! Names of the message headers that Garenne reads and writes, and functions that read their values.

use std::collections::BTreeMap;

use amq_protocol::{
    protocol::BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};

use super::TraceContext;

/// The messages that a header is written into. It is ignored in other ones, because any client can publish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenInto {
    /// Any message: publishers may set the header.
    Publisher,
    /// Tasks that workers and `garenne dead replay` publish to a lane, and those in the quarantine.
    Lane,
    /// Tasks in the quarantine.
    Quarantine,
    /// Dead letters, which are not tasks.
    DeadLetter,
}

/// Defines a constant for each header, and lists of [`ALL`] of them.
macro_rules! headers {
    ($($(#[$doc:meta])* $constant:ident = $name:literal, $written_into:ident;)*) => {
        $($(#[$doc])* pub const $constant: &str = $name;)*

        /// Every header that Garenne defines or interprets.
        pub const ALL: &[&str] = &[$($name),*];

        /// Every header with the messages that it is written into.
        pub(super) const WRITTEN_INTO: &[(&str, WrittenInto)] = &[$(($name, WrittenInto::$written_into)),*];
    };
}

headers! {
    /// Maximum run time of an attempt, in milliseconds.
    TIMEOUT_MS = "garenne-timeout-ms", Publisher;
    /// Delay before the start, in milliseconds. The first worker that reads the task replaces it by [`NOT_BEFORE`].
    DELAY_MS = "garenne-delay-ms", Publisher;
    /// Due time in milliseconds since 1970. Workers write it when they defer a task.
    NOT_BEFORE = "garenne-not-before", Lane;
    /// The task's group. Tasks of one group can be stopped, paused and awaited together.
    GROUP = "garenne-group", Publisher;
    /// Selects the queue in a lane with several: tasks with equal keys go to the same queue, and all tasks without
    /// a key go to one queue.
    KEY = "garenne-key", Publisher;
    /// Whether the payload is a call of Celery, `{"args":[…],"kwargs":{…}}`. Workers write it into the tasks that they make of
    /// the messages of Celery's senders.
    CELERY = "garenne-celery", Lane;
    /// Number of attempts spent; in a dead letter, including the last one.
    ATTEMPT = "garenne-attempt", Lane;
    /// What the handler of the last attempt that failed wrote with `checkpoint`: JSON of at most
    /// [`MAX_CHECKPOINT`](super::MAX_CHECKPOINT) bytes.
    CHECKPOINT = "garenne-checkpoint", Lane;
    /// Expiry time in milliseconds since 1970. Replaces `expiration` in a copy.
    EXPIRES_AT = "garenne-expires-at", Lane;
    /// Replaces `user_id` in a copy, because another user publishes the copy.
    USER_ID = "garenne-user-id", Lane;
    /// Number of quarantine runs that ended with a crash of the worker.
    QUARANTINE_RUNS = "garenne-quarantine-runs", Quarantine;
    /// The worker that crashed in the last of these runs, as `<worker>/<incarnation>`.
    QUARANTINE_WORKER = "garenne-quarantine-worker", Quarantine;
    /// Since when the task has been waiting for a worker with a handler for its kind, in milliseconds since 1970.
    UNHANDLED_SINCE = "garenne-unhandled-since", Lane;
    /// When the copy of such a task comes back, in milliseconds since 1970, rounded. Workers report under this time that
    /// one of them put the task off, and that one of them received it again.
    UNHANDLED_DUE = "garenne-unhandled-due", Lane;
    /// How often in a row workers without its handler passed the task on.
    PASSED_ON = "garenne-passed-on", Lane;
    /// Redeliveries that the broker counted before such workers copied the task. A copy begins with a count of 0, and a
    /// task that crashes its workers must be recognized nevertheless.
    RETURNS = "garenne-returns", Lane;
    /// When a task of a group was published, in milliseconds since 1970; the property `timestamp` has seconds.
    PUBLISHED_AT = "garenne-published-at", Publisher;
    /// Which of several values for the same reading is the latest; see [`Version`](super::Version). A task without it gets one
    /// when a worker first receives it, and copies keep it.
    VERSION = "garenne-version", Publisher;
    /// Length of the chain of follow-ups that led to the task: 0 for a task that a client published, the parent's
    /// depth plus 1 for a follow-up.
    DEPTH = "garenne-depth", Lane;
    /// The id of the task whose follow-up this is.
    PARENT = "garenne-parent", Lane;
    /// Why the task is a dead letter; see [`DeadReason`](super::DeadReason).
    REASON = "garenne-reason", DeadLetter;
    /// The error of a dead letter, one line.
    ERROR = "garenne-error", DeadLetter;
    /// Where a foreign payload came from, such as `topic:plant/boiler`. Workers write it into copies of messages of a
    /// lane with maps.
    SOURCE = "garenne-source", Lane;
    /// When a worker first received a foreign message, in microseconds since 1970: the time of its readings without one.
    /// Messages that a worker receives have different times, so that their readings do too.
    ARRIVED_US = "garenne-arrived-us", Lane;
    /// The worker that published the dead letter.
    WORKER = "garenne-worker", DeadLetter;
    /// When a worker first received the task, in milliseconds since 1970.
    FIRST_SEEN = "garenne-first-seen", Lane;
    /// When the task became a dead letter, in milliseconds since 1970.
    DIED_AT = "garenne-died-at", DeadLetter;
    /// The lane that the task came from. A replay, and a retry from the quarantine, publish it to this lane.
    LANE = "garenne-lane", Quarantine;
    /// When an operator last replayed the dead letter, in milliseconds since 1970. Earlier stop directives no longer
    /// apply to it.
    REPLAYED_AT = "garenne-replayed-at", Lane;
    /// Number of foreign headers that copies dropped because all together were too large.
    DROPPED = "garenne-dropped-headers", Lane;
    /// Encoded size of the dropped headers in bytes.
    DROPPED_BYTES = "garenne-dropped-bytes", Lane;
    /// W3C trace context.
    TRACEPARENT = "traceparent", Publisher;
    /// W3C trace state.
    TRACESTATE = "tracestate", Publisher;
}

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

/// The headers of a trace context.
pub(super) fn of_trace(trace: &TraceContext) -> impl Iterator<Item = (ShortString, AMQPValue)> {
    let state = trace.state().map(|state| (TRACESTATE, state));
    [(TRACEPARENT, trace.parent())].into_iter().chain(state).map(|(name, text)| (name.into(), long(text)))
}

/// The properties with these headers. Without any, there is no table.
pub(super) fn set(properties: BasicProperties, headers: BTreeMap<ShortString, AMQPValue>) -> BasicProperties {
    if headers.is_empty() { properties } else { properties.with_headers(headers.into()) }
}

/// A header value of type long string.
pub fn long(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.as_bytes().into())
}
