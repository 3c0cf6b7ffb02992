//! The properties of a dead letter.

use garenne_amqp::take_unreadable;
use garenne_protocol::task::header::{self, integer, text};
use lapin::{BasicProperties, message::Delivery, types::FieldTable};
use serde::{Serialize, Serializer};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// The reason of dead letters without one.
pub(super) const UNKNOWN: &str = "unknown";

/// The broker's own reasons for dead-lettering.
pub(super) const BROKER_REASONS: [&str; 4] = ["expired", "rejected", "maxlen", "delivery_limit"];

/// The headers that [`DeadLetter`] has as fields.
pub(super) const FIELD_HEADERS: [&str; 7] = [
    header::REASON,
    header::ERROR,
    header::WORKER,
    header::FIRST_SEEN,
    header::DIED_AT,
    header::LANE,
    header::ATTEMPT,
];

/// One dead letter, without its headers and payload to save memory.
#[derive(Clone, Debug, Serialize)]
pub struct DeadLetter {
    /// The task's id, if it has one.
    pub id: Option<String>,
    /// The kind: the property `type`, else the first routing key.
    pub kind: String,
    /// The broker's reason if it has dead-lettered the message, else the header `garenne-reason`.
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
    /// Number of attempts.
    #[serde(rename = "attempts")]
    pub attempt: i64,
    /// Time of its first failure, milliseconds since 1970.
    #[serde(serialize_with = "as_rfc3339")]
    pub first_seen: Option<i64>,
    /// Time of its dead-lettering, milliseconds since 1970.
    #[serde(serialize_with = "as_rfc3339")]
    pub died_at: Option<i64>,
    /// Size of the payload.
    pub bytes: usize,
}

impl DeadLetter {
    /// Reads a dead letter. Missing and malformed fields are left out, because any message can be dead-lettered.
    pub fn read(delivery: &Delivery) -> Self {
        let mut properties = delivery.properties.clone();
        let unreadable = take_unreadable(&mut properties);
        let letter = Self::of(delivery.routing_key.as_str(), &properties, delivery.data.len());
        let problem = unreadable.map(|problem| format!("the message cannot be read: {problem}"));
        Self { error: letter.error.or(problem), ..letter }
    }

    pub(super) fn of(routing_key: &str, properties: &BasicProperties, bytes: usize) -> Self {
        let headers = properties.headers();
        let word = |name| header::get(headers, name).and_then(text);
        let number = |name| header::get(headers, name).and_then(integer);
        let death = last_death(headers);
        let death_field = |name: &str| death.and_then(|death| death.inner().get(name));
        let death_text = |name: &str| death_field(name).and_then(text);
        // Workers' copies have no header of the broker. Where there is one, any publisher may have written the others.
        let deaths = [word("x-first-death-reason"), death_text("reason")];
        let of_broker = deaths.iter().flatten().find(|reason| BROKER_REASONS.contains(&reason.as_str()));
        let of_worker = |name| word(name).filter(|_| of_broker.is_none());
        let given = of_worker(header::REASON);
        let by_broker = given.is_none();
        let first_key = || death_field("routing-keys")?.as_array()?.as_slice().first().and_then(text);
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
            queue: word("x-first-death-queue").or_else(|| death_text("queue")),
            attempt: number(header::ATTEMPT).unwrap_or(0),
            first_seen: number(header::FIRST_SEEN),
            died_at: if of_broker.is_some() { death_time.or(given_time) } else { given_time.or(death_time) },
            bytes,
        }
    }
}

/// A time in milliseconds since 1970 as RFC 3339.
pub(super) fn rfc3339(ms: i64) -> Option<String> {
    let nanos = i128::from(ms) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?.format(&Rfc3339).ok()
}

fn as_rfc3339<S: Serializer>(ms: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    ms.and_then(rfc3339).serialize(serializer)
}

/// The newest entry of `x-death`.
fn last_death(headers: &Option<FieldTable>) -> Option<&FieldTable> {
    header::get(headers, "x-death")?.as_array()?.as_slice().first()?.as_field_table()
}

#[cfg(test)]
pub(super) mod tests;
