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
fn a_message_with_only_a_routing_key_is_a_task() {
    let task = read("bench.noop", BasicProperties::default()).unwrap();
    assert_eq!(task.kind.as_str(), "bench.noop");
    assert!(!task.id_given);
    assert_eq!(task.attempt, 0);
}

#[test]
fn type_overrides_the_default_kind_which_overrides_an_unknown_routing_key() {
    assert_eq!(read("some.topic", BasicProperties::default()).unwrap().kind.as_str(), "reading.process");
    let typed = BasicProperties::default().with_type("odd.kind".into());
    assert_eq!(read("bench.noop", typed).unwrap().kind.as_str(), "odd.kind");
}

#[test]
fn numeric_headers_accept_any_integer_type_and_errors_name_the_header() {
    let task = read("bench.noop", headers(&[(header::TIMEOUT_MS, 250_u8.into())])).unwrap();
    assert_eq!(task.timeout, Some(Duration::from_millis(250)));
    let task = read("bench.noop", headers(&[(header::ATTEMPT, long("3"))])).unwrap();
    assert_eq!(task.attempt, 3);
    let error = read("bench.noop", headers(&[(header::TIMEOUT_MS, long("soon"))])).unwrap_err();
    assert_eq!(error.to_string(), "header garenne-timeout-ms must be a whole number from 0 to 2592000000");
}

#[test]
fn a_delay_becomes_an_absolute_due_time() {
    let task = read("bench.noop", headers(&[(header::DELAY_MS, 1500_i32.into())])).unwrap();
    assert_eq!(task.due_in(now()), Some(Duration::from_millis(1500)));
    assert_eq!(task.due_in(now() + Duration::from_secs(2)), None);
}

#[test]
fn published_ms_prefers_the_header_in_milliseconds_over_the_timestamp() {
    let with_timestamp = |seconds: u64| BasicProperties::default().with_timestamp(seconds);
    assert_eq!(read("bench.noop", BasicProperties::default()).unwrap().published_ms(), None);
    assert_eq!(read("bench.noop", with_timestamp(7)).unwrap().published_ms(), Some(7000));
    // A timestamp in nanoseconds is out of range and counts as absent.
    assert_eq!(read("bench.noop", with_timestamp(u64::MAX)).unwrap().published_ms(), None);
    let exact = headers(&[(header::PUBLISHED_AT, 7123_i64.into())]).with_timestamp(7);
    assert_eq!(read("bench.noop", exact).unwrap().published_ms(), Some(7123));
}

#[test]
fn quarantine_headers_are_validated() {
    const INCARNATION: &str = "0195f0c2-7a10-7000-8000-00000000002a";
    let valid = [
        (header::QUARANTINE_RUNS, 1_u32.into()),
        (header::QUARANTINE_WORKER, long(&format!("w-1/{INCARNATION}"))),
        (header::UNHANDLED_SINCE, 5_i64.into()),
        (header::PASSED_ON, 2_u32.into()),
        (header::RETURNS, 3_u32.into()),
    ];
    let task = read("bench.noop", headers(&valid)).unwrap();
    let record = task.quarantine.clone().unwrap();
    let worker = record.worker.unwrap();
    assert_eq!((worker.worker(), worker.incarnation()), ("w-1", INCARNATION));
    assert_eq!(record.runs, 1);
    assert_eq!((Envelope { delivery_count: 4, ..task.clone() }.returns(), task.returns()), (7, 3));
    assert_eq!(
        *task.unhandled.unwrap(),
        UnhandledRecord { since: Some(5), due: None, passed_on: 2, returns: 3 }
    );
    for invalid in [long("w-1"), long(&"x".repeat(4000)), true.into()] {
        let refused = read("bench.noop", headers(&[(header::QUARANTINE_WORKER, invalid)])).unwrap_err();
        assert_eq!(refused.to_string(), "header garenne-quarantine-worker must be <worker>/<incarnation>");
    }
}

#[test]
fn a_negative_expiration_is_refused() {
    let refused = read("bench.noop", BasicProperties::default().with_expiration("-1000".into()));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "property expiration must be milliseconds as decimal text, not \"-1000\""
    );
}

#[test]
fn expiration_is_relative_to_the_timestamp_if_there_is_one() {
    let properties =
        BasicProperties::default().with_expiration("5000".into()).with_timestamp(1_800_000_000 - 4);
    let task = read("bench.noop", properties).unwrap();
    assert!(!task.expired(now()));
    assert!(task.expired(now() + Duration::from_secs(1)));
}

#[test]
fn a_timestamp_too_large_for_seconds_counts_as_absent() {
    for large in [1_800_000_000_000, 1_800_000_000_000_000_000, u64::MAX] {
        let properties = BasicProperties::default().with_expiration("5000".into()).with_timestamp(large);
        let task = read("bench.noop", properties).unwrap();
        assert_eq!((task.timestamp, task.expires_at), (None, Some(1_800_000_005_000)), "{large}");
    }
}

#[test]
fn a_due_time_beyond_thirty_days_and_clock_skew_is_refused() {
    let due = |at: i64| read("bench.noop", headers(&[(header::NOT_BEFORE, at.into())]));
    let latest = 1_800_000_000_000 + 31 * 24 * 3600 * 1000;
    assert_eq!(due(latest).unwrap().not_before, Some(latest));
    for at in [latest + 1, i64::MAX, -1] {
        let expected = format!("header garenne-not-before must be a whole number from 0 to {latest}");
        assert_eq!(due(at).unwrap_err().to_string(), expected);
    }
}
