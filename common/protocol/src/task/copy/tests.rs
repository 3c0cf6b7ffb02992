use std::time::{Duration, UNIX_EPOCH};

use amq_protocol::types::FieldTable;
use proptest::prelude::*;

use super::*;
use crate::task::{
    TraceContext,
    encoded::{header_frame_bytes, tests::any_properties},
    read_batch,
};

#[test]
fn a_copy_drops_properties_that_lose_or_duplicate_it_and_keeps_the_rest() {
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
    assert_eq!(
        names,
        ["garenne-attempt", "garenne-expires-at", "garenne-user-id", "garenne-version", "mine"]
    );
    assert_eq!(header::get(copy.headers(), header::EXPIRES_AT).and_then(header::integer), Some(1_002_000));
    assert_eq!(copy.user_id(), &None);
    assert_eq!(copy.expiration(), &None);
    assert_eq!(copy.kind().as_ref().unwrap().as_str(), "bench.noop");
    assert_eq!(copy.message_id().as_ref().unwrap().as_str(), task.id.as_str());
    assert_eq!(copy.reply_to().as_ref().unwrap().as_str(), "answers");
    assert_eq!(copy.priority(), &Some(3));

    let again = Envelope::read("garenne.retry.fast.1s", &copy, None, |_| true, now).unwrap();
    assert_eq!((again.kind.as_str(), again.attempt, again.expires_at), ("bench.noop", 2, Some(1_002_000)));
}

#[test]
fn a_copy_of_a_batch_record_is_small_whatever_the_batch_carries() {
    let text = || "x".repeat(250);
    let mut table = FieldTable::default();
    for n in 0..31 {
        table.insert(format!("foreign-{n}").into(), long(&"x".repeat(1000)));
    }
    for name in header::ALL {
        table.insert((*name).into(), long(&text()));
    }
    table.insert(header::GROUP.into(), long("g"));
    table.insert(header::KEY.into(), long(&"x".repeat(1000)));
    for number in [header::TIMEOUT_MS, header::NOT_BEFORE, header::ATTEMPT, header::EXPIRES_AT, header::DEPTH]
    {
        table.insert(number.into(), 1_i64.into());
    }
    for none in
        [header::DELAY_MS, header::PARENT, header::ARRIVED_US, header::FIRST_SEEN, header::REPLAYED_AT]
    {
        table.insert(none.into(), 1_i64.into());
    }
    let batch = BasicProperties::default()
        .with_content_type(BATCH.into())
        .with_correlation_id(text().into())
        .with_reply_to(text().into())
        .with_app_id(text().into())
        .with_content_encoding(text().into())
        .with_headers(table);
    let whole = Envelope { content_type: ContentType::Batch, ..envelope_of(&BasicProperties::default()) };
    let record = Envelope { content_type: ContentType::Json, ..whole };
    let copied = Copied::of(&batch, &record, UNIX_EPOCH);
    let copied = copied.checkpoint(&"x".repeat(MAX_CHECKPOINT));
    let copy =
        copied.dead(DeadReason::Rejected, &"x".repeat(2000), &text(), &text(), UNIX_EPOCH).into_properties();
    let headers = copy.headers().as_ref().unwrap();
    assert!(!headers.inner().keys().any(|name| name.as_str().starts_with("foreign")), "{headers:?}");
    assert_eq!(header::get(copy.headers(), header::GROUP).and_then(header::text).as_deref(), Some("g"));
    let number = |name| header::get(copy.headers(), name).and_then(header::integer);
    // Those of Garenne that are text of 250 bytes still fit.
    assert!(
        number(header::DROPPED) >= Some(32) && number(header::DROPPED_BYTES) > Some(32_000),
        "{headers:?}"
    );
    let bytes: usize = headers.inner().iter().map(|(name, value)| entry_bytes(name, value)).sum();
    assert!(bytes + 7 * 256 <= Copied::RECORD_BYTES, "{bytes}");
}

#[test]
fn a_copy_keeps_a_whole_checkpoint_beside_the_headers_of_the_application() {
    let mut table = FieldTable::default();
    // Its name, type and length: six bytes and the name.
    table.insert("mine".into(), long(&"x".repeat(Copied::FOREIGN_BYTES - 10)));
    let original = BasicProperties::default().with_headers(table);
    let copied = Copied::of(&original, &envelope_of(&original), UNIX_EPOCH);
    let copy = copied.checkpoint(&"x".repeat(MAX_CHECKPOINT)).into_properties();
    let text = |name| header::get(copy.headers(), name).and_then(header::text).map(|text| text.len());
    assert_eq!(text(header::CHECKPOINT), Some(MAX_CHECKPOINT));
    assert_eq!(text("mine"), Some(Copied::FOREIGN_BYTES - 10));
    assert_eq!(text(header::DROPPED), None);
}

fn envelope_of(properties: &BasicProperties) -> Envelope {
    Envelope::read("any.kind", properties, None, |_| true, UNIX_EPOCH).unwrap()
}

#[test]
fn a_copy_of_a_batch_record_has_the_records_id_content_type_and_trace() {
    let mut table = FieldTable::default();
    table.insert("mine".into(), long("v"));
    table.insert(header::TRACEPARENT.into(), long("the batch's"));
    let batch = BasicProperties::default()
        .with_message_id("batch".into())
        .with_content_type(BATCH.into())
        .with_headers(table);
    let whole = Envelope::read("k", &batch, None, |_| true, UNIX_EPOCH).unwrap();
    let fields = |task: &Envelope| {
        let copy = Copied::of(&batch, task, UNIX_EPOCH).into_properties();
        let text = |name| header::get(copy.headers(), name).and_then(header::text);
        let content_type = copy.content_type().as_ref().unwrap().to_string();
        let id = copy.message_id().as_ref().unwrap().to_string();
        (id, content_type, text("mine"), text(header::TRACEPARENT))
    };
    let expected = |id: &str, content_type: &str, trace: Option<&str>| {
        (id.to_owned(), content_type.to_owned(), None, trace.map(str::to_owned))
    };
    let of_batch =
        ("batch".to_owned(), BATCH.to_owned(), Some("v".to_owned()), Some("the batch's".to_owned()));
    assert_eq!(fields(&whole), of_batch);
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let body = format!(
        r#"[{{"id":"a","senml":true,"payload":[]}},{{"id":"b","traceparent":"{traceparent}","payload":{{}}}}]"#
    );
    let records: Vec<_> =
        read_batch(body.as_bytes()).unwrap().iter().map(|it| fields(&it.envelope(&whole))).collect();
    let expected =
        [expected("a", "application/senml+json", None), expected("b", "application/json", Some(traceparent))];
    assert_eq!(records, expected);
}

#[test]
fn a_copy_keeps_the_tasks_trace_or_takes_the_one_its_worker_started() {
    let started = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let copied_from = |parent: &str| {
        let mut table = FieldTable::default();
        table.insert(header::TRACEPARENT.into(), long(parent));
        let original = BasicProperties::default().with_headers(table);
        let mut task = Envelope::read("k", &original, None, |_| true, UNIX_EPOCH).unwrap();
        task.trace = task.trace.or_else(|| TraceContext::parse(started, Some("v=1")));
        let copy = Copied::of(&original, &task, UNIX_EPOCH).into_properties();
        let text = |name| header::get(copy.headers(), name).and_then(header::text);
        (text(header::TRACEPARENT).unwrap(), text(header::TRACESTATE))
    };
    assert_eq!(copied_from("unreadable"), (started.to_owned(), Some("v=1".to_owned())));
    let later_version = started.replace("00-", "cc-");
    assert_eq!(copied_from(&later_version), (later_version, None));
}

#[test]
fn the_error_of_a_dead_letter_is_one_line() {
    let copy = Copied::verbatim(&BasicProperties::default(), "some.key", UNIX_EPOCH)
        .dead(DeadReason::Rejected, "first\nsecond", "w", "fast", UNIX_EPOCH)
        .into_properties();
    let error = header::get(copy.headers(), header::ERROR).and_then(header::text);
    assert_eq!(error.as_deref(), Some("first second"));
}

#[test]
fn a_long_error_keeps_its_begin_and_its_first_cause() {
    let error = |error: &str| {
        let copy = Copied::verbatim(&BasicProperties::default(), "some.key", UNIX_EPOCH);
        let copy = copy.dead(DeadReason::Rejected, error, "w", "fast", UNIX_EPOCH).into_properties();
        header::get(copy.headers(), header::ERROR).and_then(header::text).unwrap()
    };
    assert_eq!(error(&"x".repeat(1000)), "x".repeat(1000));
    for middle in ["x", "é", "€"].map(|it| it.repeat(1000)) {
        let cut = error(&format!("cannot send: {middle}: connection refused"));
        assert!(cut.starts_with("cannot send: ") && cut.ends_with(": connection refused"), "{cut}");
        assert!((990..=1000).contains(&cut.len()) && cut.contains(" … "), "{}", cut.len());
    }
}

/// The encoded size of the foreign headers, and the count and bytes of dropped ones if the headers say so.
fn foreign(properties: &BasicProperties) -> (usize, Option<(i64, i64)>) {
    let headers = properties.headers().as_ref().unwrap().inner();
    let foreign = headers.iter().filter(|(name, _)| !header::ALL.contains(&name.as_str()));
    let number = |name| header::get(properties.headers(), name).and_then(header::integer);
    let dropped = number(header::DROPPED).zip(number(header::DROPPED_BYTES));
    (foreign.map(|(name, value)| entry_bytes(name, value)).sum(), dropped)
}

#[test]
fn foreign_headers_are_dropped_largest_first_and_counted_over_all_copies() {
    let mut table = FieldTable::default();
    table.insert("large".into(), long(&"x".repeat(100_000)));
    table.insert("medium".into(), long(&"x".repeat(20_000)));
    table.insert("small".into(), long("v"));
    table.insert(header::GROUP.into(), long("g"));
    let original = BasicProperties::default().with_message_id("1".into()).with_headers(table);
    let task = Envelope::read("k", &original, None, |_| true, UNIX_EPOCH).unwrap();
    let copy = Copied::of(&original, &task, UNIX_EPOCH).into_properties();
    let names: Vec<_> = copy.headers().as_ref().unwrap().inner().keys().map(|k| k.as_str()).collect();
    assert_eq!(
        names,
        [
            "garenne-dropped-bytes",
            "garenne-dropped-headers",
            "garenne-group",
            "garenne-version",
            "medium",
            "small"
        ]
    );
    assert_eq!(foreign(&copy).1, Some((1, 100_011)));

    let Copied { properties, headers } = Copied::of(&copy, &task, UNIX_EPOCH);
    let more = Copied { properties, headers }.with("late", long(&"x".repeat(30_000))).into_properties();
    assert_eq!(foreign(&more).1, Some((2, 130_021)));
}

#[test]
fn a_bare_copy_keeps_the_id_and_the_dead_letter_headers() {
    let mut table = FieldTable::default();
    for n in 0..100 {
        table.insert(format!("h{n:02}").as_str().into(), long(&"x".repeat(90)));
    }
    let text = "t".repeat(255);
    let original = BasicProperties::default()
        .with_message_id("1".into())
        .with_reply_to(text.as_str().into())
        .with_correlation_id(text.as_str().into())
        .with_content_type(text.as_str().into())
        .with_headers(table);
    let bare = Copied::verbatim(&original, &text, UNIX_EPOCH)
        .dead(DeadReason::Malformed, &"é".repeat(2000), &text, &text, UNIX_EPOCH)
        .bare()
        .into_properties();
    let kept: Vec<_> = bare.headers().as_ref().unwrap().inner().keys().map(|k| k.as_str()).collect();
    let expected = ["died-at", "dropped-bytes", "dropped-headers", "error", "first-seen", "lane", "reason"];
    let expected: Vec<_> = expected.into_iter().chain(["worker"]).map(|it| format!("garenne-{it}")).collect();
    assert_eq!(kept, expected);
    assert_eq!(bare.message_id().as_ref().unwrap().as_str(), "1");
    assert_eq!(foreign(&bare).1, Some((100, 9_900)));
    let bytes = header_frame_bytes(&bare);
    assert!(bytes < 4_000, "{bytes}");
}

#[test]
fn a_routing_key_over_255_bytes_does_not_become_the_type() {
    let copy = Copied::verbatim(&BasicProperties::default(), &"k".repeat(256), UNIX_EPOCH);
    assert_eq!(copy.into_properties().kind(), &None);
}

#[test]
fn a_first_seen_header_is_kept_if_it_is_a_time_and_replaced_otherwise() {
    let now = UNIX_EPOCH + Duration::from_secs(7);
    let seen = |before: AMQPValue| {
        let mut table = FieldTable::default();
        table.insert(header::FIRST_SEEN.into(), before);
        let original = BasicProperties::default().with_headers(table);
        let copy = Copied::verbatim(&original, "k", now).first_seen(now).into_properties();
        header::get(copy.headers(), header::FIRST_SEEN).and_then(header::integer)
    };
    assert_eq!(seen(long("yesterday")), Some(7000));
    assert_eq!(seen(AMQPValue::LongLongInt(-1)), Some(7000));
    assert_eq!(seen(AMQPValue::LongLongInt(0)), Some(0));
    assert_eq!(seen(AMQPValue::LongLongInt(5)), Some(5));
}

proptest! {
    /// Half of the cases use Garenne's header names, so that invalid values of them are common.
    #[test]
    fn any_copy_fits_a_frame_and_reads_back_as_the_same_task(
        original in prop_oneof![
            any_properties(header::ALL, 20_000),
            any_properties(&[header::KEY, "x-death"], 20_000),
        ],
        is_named in any::<bool>(),
        error in ".{0,3000}",
    ) {
        let named = |it: BasicProperties| it.with_type("k".into()).with_message_id("1".into());
        let original = if is_named { named(original) } else { original };
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let fits = |copy: &Copied| header_frame_bytes(&copy.clone().into_properties()) <= 64 * 1024;
        let read = |properties: &BasicProperties| Envelope::read("some.key", properties, None, |_| true, now);
        match read(&original) {
            Err(_) => {
                let dead = Copied::verbatim(&original, "some.key", now);
                prop_assert!(fits(&dead.dead(DeadReason::Malformed, &error, "w", "fast", now)));
            }
            Ok(task) => {
                let dead = Copied::of(&original, &task, now);
                let dead = dead.dead(DeadReason::Rejected, &error, "w", "fast", now);
                prop_assert!(fits(&dead));
                prop_assert!(header_frame_bytes(&dead.bare().into_properties()) <= 4_000);
                let retry = Copied::of(&original, &task, now).attempt(task.attempt).first_seen(now);
                // A delay becomes an absolute time in the copy that waits for it.
                let retry = match task.not_before {
                    Some(at) => retry.not_before(at),
                    None => retry,
                };
                prop_assert!(fits(&retry));
                let copy = retry.into_properties();
                prop_assert!(foreign(&copy).0 <= Copied::FOREIGN_BYTES);
                let again = read(&copy).unwrap();
                // A copy always has an id and a version, and never a delivery count.
                let expected = Envelope { id_given: true, version_given: true, delivery_count: 0, ..task };
                prop_assert_eq!(again, expected);
            }
        }
    }
}

#[test]
fn quarantine_headers_are_set_and_removed_together() {
    let worker = WorkerIncarnation::new("w", "0195f0c2-7a10-7000-8000-00000000002a");
    let original = BasicProperties::default();
    let task = Envelope::read("k", &original, None, |_| true, UNIX_EPOCH).unwrap();
    let read = |copy: Copied| {
        let read = Envelope::read("q", &copy.into_properties(), None, |_| true, UNIX_EPOCH).unwrap();
        let quarantine = read.quarantine.map(|record| (record.runs, record.worker));
        (quarantine, read.unhandled.map(|record| *record))
    };
    let record = UnhandledRecord { since: Some(9), due: Some(19), passed_on: 2, returns: 3 };
    let copy = Copied::of(&original, &task, UNIX_EPOCH).unhandled(record);
    assert_eq!(read(copy.clone()), (None, Some(record)));
    let later = UnhandledRecord { passed_on: 3, ..UnhandledRecord::default() };
    assert_eq!(read(copy.clone().unhandled(later)), (None, Some(later)), "a record replaces the earlier one");
    let copy = copy.crashed(1, &worker);
    assert_eq!(read(copy.clone()), (Some((1, Some(worker))), None));
    assert_eq!(read(copy.unhandled(record).unmarked()), (None, None));
}

/// A copy of a message that could not be read, with these headers.
fn copy_with(headers: impl IntoIterator<Item = (String, AMQPValue)>) -> Copied {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert(name.as_str().into(), value);
    }
    Copied::verbatim(&BasicProperties::default().with_headers(table), "k", UNIX_EPOCH)
}

#[test]
fn a_copy_is_a_dead_letter_once_it_has_a_reason() {
    let copy = copy_with([]);
    assert!(!copy.is_dead());
    assert!(copy.dead(DeadReason::Rejected, "no", "w", "fast", UNIX_EPOCH).is_dead());
}

#[test]
fn many_small_foreign_headers_are_bounded_as_a_few_large_ones_are() {
    let small = (0..1000).map(|n| (format!("h{n:03}"), long(&"x".repeat(90))));
    let (bytes, note) = foreign(&copy_with(small).into_properties());
    assert!((Copied::FOREIGN_BYTES - 100..=Copied::FOREIGN_BYTES).contains(&bytes), "{bytes}");
    assert_eq!(note.map(|(count, _)| count), Some(1000 - 327));
}

#[test]
fn internal_headers_of_a_size_that_no_worker_writes_are_kept_neither_by_a_copy_nor_by_a_bare_one() {
    let copied = copy_with([(header::ATTEMPT.to_owned(), long(&"x".repeat(40_000)))]);
    let bare = copied.clone().dead(DeadReason::Malformed, "bad", "w", "fast", UNIX_EPOCH).bare();
    assert_eq!(header::get(copied.into_properties().headers(), header::ATTEMPT), None);
    let smaller = copy_with([(header::ATTEMPT.to_owned(), long(&"x".repeat(5_000)))]);
    let smaller = smaller.dead(DeadReason::Malformed, "bad", "w", "fast", UNIX_EPOCH).bare();
    for bare in [bare, smaller] {
        assert_eq!(header::get(bare.into_properties().headers(), header::ATTEMPT), None);
    }
}
