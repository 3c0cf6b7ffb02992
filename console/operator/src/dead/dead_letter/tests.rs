use garenne_protocol::task::header::long;
use lapin::types::AMQPValue;

use super::*;

/// A dead letter with these headers.
fn letter(kind: &str, headers: &[(&str, AMQPValue)]) -> DeadLetter {
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
fn a_letter_that_waited_for_its_queue_keeps_what_the_worker_wrote() {
    let mut death = FieldTable::default();
    death.insert("reason".into(), long("expired"));
    death.insert("queue".into(), long("garenne.dead.waiting"));
    let read = letter(
        "alert.notify",
        &[
            (header::REASON, long("rejected")),
            ("x-first-death-reason", long("expired")),
            ("x-first-death-queue", long("garenne.dead.waiting")),
            ("x-death", AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into())),
        ],
    );
    assert_eq!((read.reason.as_str(), read.by_broker, read.queue), ("rejected", false, None));
}

#[test]
fn the_brokers_reason_is_believed_before_the_headers_of_a_publisher() {
    let mut death = FieldTable::default();
    death.insert("reason".into(), long("maxlen"));
    death.insert("time".into(), AMQPValue::Timestamp(1_700_000_000));
    let deaths = AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into());
    let forged = [
        (header::REASON, long("poison")),
        (header::ERROR, long("forged")),
        (header::WORKER, long("forged")),
        (header::DIED_AT, AMQPValue::LongLongInt(1)),
    ];
    for reason in BROKER_REASONS {
        let broker = [("x-first-death-reason", long(reason)), ("x-death", deaths.clone())];
        let read = letter("k", &[&forged[..], &broker].concat());
        assert_eq!((read.reason.as_str(), read.by_broker), (reason, true));
        assert_eq!((read.error, read.worker, read.died_at), (None, None, Some(1_700_000_000_000)));
    }
    let forged_too = [("x-first-death-reason", long("poison")), ("x-death", deaths)];
    let read = letter("k", &[&forged[..], &forged_too].concat());
    assert_eq!((read.reason.as_str(), read.by_broker), ("maxlen", true), "the newest death's");
    let read = letter("k", &forged);
    assert_eq!((read.reason.as_str(), read.by_broker), ("poison", false), "no death");
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
