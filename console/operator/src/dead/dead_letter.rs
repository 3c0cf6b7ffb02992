//! The properties of a dead letter.

use garenne_protocol::task::header::{self, integer};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use serde::{Serialize, Serializer};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// The reason of dead letters without one.
pub const UNKNOWN: &str = "unknown";

/// The broker's own reasons for dead-lettering.
pub const BROKER_REASONS: [&str; 4] = ["expired", "rejected", "maxlen", "delivery_limit"];

/// The reason of messages in the queue of unroutable messages.
const UNROUTABLE: &str = "unroutable";

/// Limit on a text of a header, in bytes. Workers write shorter ones; another publisher could fill the memory of a list.
const MAX_TEXT: usize = 1_000;

/// The headers that [`DeadLetter`] has as fields.
pub const FIELD_HEADERS: [&str; 7] = [
    header::REASON,
    header::ERROR,
    header::WORKER,
    header::FIRST_SEEN,
    header::DIED_AT,
    header::LANE,
    header::ATTEMPT,
];

/// One message of a queue that waits for an operator, without its headers and payload to save memory.
#[derive(Clone, Debug, Serialize)]
pub struct DeadLetter {
    /// The task's id, if it has one.
    pub id: Option<String>,
    /// The kind: the property `type`, else the first routing key.
    pub kind: String,
    /// The broker's reason if it has dead-lettered the message, else the header `garenne-reason`, or `unroutable`.
    pub reason: String,
    /// Whether the broker itself dead-lettered it.
    pub by_broker: bool,
    /// The error in one line.
    pub error: Option<String>,
    /// The worker that dead-lettered it.
    pub worker: Option<String>,
    /// The task's lane.
    pub lane: Option<String>,
    /// The queue that the broker dead-lettered it from.
    pub queue: Option<String>,
    /// The task's group.
    pub group: Option<String>,
    /// The routing key in the queue; that of the original message only if it was unroutable.
    #[serde(skip)]
    pub routing_key: String,
    /// Number of attempts, including the last one.
    #[serde(rename = "attempts")]
    pub attempt: i64,
    /// When a worker first received it, milliseconds since 1970.
    #[serde(serialize_with = "as_rfc3339")]
    pub first_seen: Option<i64>,
    /// Time of its dead-lettering, milliseconds since 1970. Of an unroutable message, the time of its publication, if
    /// its publisher wrote one.
    #[serde(serialize_with = "as_rfc3339")]
    pub died_at: Option<i64>,
    /// Size of the payload.
    pub bytes: usize,
}

impl DeadLetter {
    /// Reads a message that no binding matched. No worker and no broker has written headers.
    pub fn unroutable(routing_key: &str, properties: &BasicProperties, bytes: usize) -> Self {
        let headers = properties.headers();
        let seconds = || properties.timestamp().and_then(|at| i64::try_from(at).ok()?.checked_mul(1_000));
        let kind = properties.kind().as_ref().map(|kind| kind.as_str());
        Self {
            id: properties.message_id().as_ref().map(|id| id.as_str().to_owned()),
            kind: kind.unwrap_or(routing_key).to_owned(),
            reason: UNROUTABLE.to_owned(),
            by_broker: true,
            error: None,
            worker: None,
            lane: None,
            queue: None,
            group: header::get(headers, header::GROUP).and_then(text),
            routing_key: routing_key.to_owned(),
            attempt: 0,
            first_seen: None,
            died_at: header::get(headers, header::PUBLISHED_AT).and_then(integer).or_else(seconds),
            bytes,
        }
    }

    /// Reads a dead letter, with the headers of the worker or the broker that wrote it.
    pub fn of(routing_key: &str, properties: &BasicProperties, bytes: usize) -> Self {
        let headers = properties.headers();
        let word = |name| header::get(headers, name).and_then(text);
        let number = |name| header::get(headers, name).and_then(integer);
        let death = last_death(headers);
        let death_field = |name: &str| death.and_then(|death| death.inner().get(name));
        let death_text = |name: &str| death_field(name).and_then(text);
        // Workers' copies have no header of the broker. Where there is one, any publisher may have written the others.
        let deaths = [word("x-first-death-reason"), death_text("reason")];
        // The broker moved it from where letters wait, in which only the fleet's programs write them.
        let has_waited = death_text("queue").is_some_and(|queue| queue.ends_with(".dead.waiting"));
        let deaths = if has_waited { [None, None] } else { deaths };
        let of_broker = deaths.iter().flatten().find(|reason| BROKER_REASONS.contains(&reason.as_str()));
        let of_worker = |name| word(name).filter(|_| of_broker.is_none());
        let given = of_worker(header::REASON);
        let by_broker = given.is_none();
        let first_key = || first_routing_key(headers).map(shortened);
        let kind = properties.kind().as_ref().map(|kind| kind.as_str().to_owned());
        // The broker writes seconds. Other clients can write any number.
        let death_time = death_field("time").and_then(integer).and_then(|seconds| seconds.checked_mul(1000));
        let given_time = number(header::DIED_AT);
        Self {
            id: properties.message_id().as_ref().map(|id| id.as_str().to_owned()),
            kind: kind.or_else(first_key).unwrap_or_else(|| routing_key.to_owned()),
            reason: of_broker
                .or(given.as_ref())
                .or(deaths.iter().flatten().next())
                .map_or(UNKNOWN, String::as_str)
                .to_owned(),
            by_broker,
            error: of_worker(header::ERROR),
            worker: of_worker(header::WORKER),
            lane: word(header::LANE),
            queue: word("x-first-death-queue").or_else(|| death_text("queue")).filter(|_| !has_waited),
            group: word(header::GROUP),
            routing_key: routing_key.to_owned(),
            attempt: number(header::ATTEMPT).unwrap_or(0),
            first_seen: number(header::FIRST_SEEN),
            died_at: if of_broker.is_some() { death_time.or(given_time) } else { given_time.or(death_time) },
            bytes,
        }
    }
}

/// A time in milliseconds since 1970 as RFC 3339.
pub fn rfc3339(ms: i64) -> Option<String> {
    let nanos = i128::from(ms) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?.format(&Rfc3339).ok()
}

/// Milliseconds since 1970 as RFC 3339, for `serialize_with`.
pub fn as_rfc3339<S: Serializer>(ms: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    ms.and_then(rfc3339).serialize(serializer)
}

/// A text of at most [`MAX_TEXT`] bytes.
fn text(value: &AMQPValue) -> Option<String> {
    header::text(value).map(shortened)
}

fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

/// The first routing key of a message that the broker dead-lettered.
pub fn first_routing_key(headers: &Option<FieldTable>) -> Option<String> {
    let keys = last_death(headers)?.inner().get("routing-keys")?;
    keys.as_array()?.as_slice().first().and_then(header::text)
}

/// The newest entry of `x-death`.
fn last_death(headers: &Option<FieldTable>) -> Option<&FieldTable> {
    header::get(headers, "x-death")?.as_array()?.as_slice().first()?.as_field_table()
}

#[cfg(test)]
mod tests;
