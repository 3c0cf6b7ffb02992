//! The properties of a dead letter.

use garenne_amqp::take_unreadable;
use garenne_protocol::task::header::{self, integer, text};
use lapin::{
    BasicProperties,
    message::Delivery,
    types::{AMQPValue, FieldTable},
};

/// The reason of dead letters without one.
pub(super) const UNKNOWN: &str = "unknown";

/// One dead letter, without its headers and payload to save memory.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The task's id, if it has one.
    pub id: Option<String>,
    /// The kind: the property `type`, else the first routing key.
    pub kind: String,
    /// The reason: the header `garenne-reason`, else the broker's reason.
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
    pub attempt: i64,
    /// Time of its first failure, milliseconds since 1970.
    pub first_seen: Option<i64>,
    /// Time of its dead-lettering, milliseconds since 1970.
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
        let death_text = |name: &str| death.and_then(|death| death.inner().get(name)).and_then(text);
        let given = word(header::REASON);
        let by_broker = given.is_none();
        let broker_reason = || word("x-first-death-reason").or_else(|| death_text("reason"));
        let first_key = || match death.and_then(|death| death.inner().get("routing-keys")) {
            Some(AMQPValue::FieldArray(keys)) => keys.as_slice().first().and_then(text),
            _ => None,
        };
        let kind = properties.kind().as_ref().map(|kind| kind.as_str().to_owned());
        Self {
            id: properties.message_id().as_ref().map(|id| id.as_str().to_owned()),
            kind: kind.or_else(first_key).unwrap_or_else(|| routing_key.to_owned()),
            reason: given.or_else(broker_reason).unwrap_or_else(|| UNKNOWN.to_owned()),
            by_broker,
            error: word(header::ERROR),
            worker: word(header::WORKER),
            lane: word(header::LANE),
            queue: word("x-first-death-queue").or_else(|| death_text("queue")),
            attempt: number(header::ATTEMPT).unwrap_or(0),
            first_seen: number(header::FIRST_SEEN),
            died_at: number(header::DIED_AT).or_else(|| {
                // The broker writes seconds. Other clients can write any number.
                let seconds = death.and_then(|death| death.inner().get("time")).and_then(integer)?;
                seconds.checked_mul(1000)
            }),
            bytes,
        }
    }
}

/// The newest entry of `x-death`.
fn last_death(headers: &Option<FieldTable>) -> Option<&FieldTable> {
    match header::get(headers, "x-death")? {
        AMQPValue::FieldArray(deaths) => match deaths.as_slice().first()? {
            AMQPValue::FieldTable(death) => Some(death),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use garenne_protocol::task::header::long;

    use super::*;

    /// A dead letter with these headers.
    pub(in crate::dead) fn letter(kind: &str, headers: &[(&str, AMQPValue)]) -> DeadLetter {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        let properties =
            BasicProperties::default().with_message_id("7".into()).with_type(kind.into()).with_headers(table);
        DeadLetter::of("garenne.dead", &properties, 2)
    }

    #[test]
    fn headers_of_a_worker_are_read() {
        let read = letter(
            "alert.notify",
            &[
                (header::REASON, long("attempts-exhausted")),
                (header::ERROR, long("webhook answered 500")),
                (header::ATTEMPT, AMQPValue::LongUInt(5)),
                (header::DIED_AT, AMQPValue::LongLongInt(1_700_000_000_123)),
            ],
        );
        assert_eq!((read.reason.as_str(), read.by_broker, read.attempt), ("attempts-exhausted", false, 5));
        assert_eq!(read.died_at, Some(1_700_000_000_123));
        assert_eq!(read.kind, "alert.notify");
    }

    #[test]
    fn a_message_dead_lettered_by_the_broker_has_its_reason_kind_and_time() {
        let mut death = FieldTable::default();
        death.insert("reason".into(), long("expired"));
        death.insert("queue".into(), long("garenne.tasks.fast"));
        death.insert("time".into(), AMQPValue::Timestamp(1_700_000_000));
        death.insert("routing-keys".into(), AMQPValue::FieldArray(vec![long("reading.process")].into()));
        let mut table = FieldTable::default();
        table.insert("x-death".into(), AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into()));
        table.insert("x-first-death-reason".into(), long("expired"));
        let read = DeadLetter::of("x", &BasicProperties::default().with_headers(table), 0);
        assert_eq!((read.reason.as_str(), read.by_broker), ("expired", true));
        assert_eq!((read.kind.as_str(), read.id), ("reading.process", None));
        assert_eq!(read.queue.as_deref(), Some("garenne.tasks.fast"));
        assert_eq!(read.died_at, Some(1_700_000_000_000));
    }

    #[test]
    fn a_dead_letter_without_properties_is_read() {
        let read = DeadLetter::of("some.key", &BasicProperties::default(), 0);
        assert_eq!((read.kind.as_str(), read.reason.as_str(), read.died_at), ("some.key", "unknown", None));
    }

    #[test]
    fn a_forged_time_is_left_out() {
        let mut death = FieldTable::default();
        death.insert("time".into(), AMQPValue::LongLongInt(i64::MAX));
        let deaths = AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into());
        assert_eq!(letter("k", &[("x-death", deaths)]).died_at, None);
    }
}
