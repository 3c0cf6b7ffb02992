//! Internal headers that are set by foreign publishers, and headers that are too large to copy.

use std::collections::BTreeSet;

use anyhow::Result;
use garenne_tests::harness::{
    client::{headers, text, with_id},
    process::Signal,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldArray, FieldTable},
};
use serde_json::json;

/// Headers that only workers write, and the labels under which they are counted when they are ignored.
const INTERNAL: [(&str, &str); 17] = [
    ("garenne-attempt", "garenne-attempt"),
    ("garenne-depth", "garenne-depth"),
    ("garenne-died-at", "garenne-died-at"),
    ("garenne-dropped-bytes", "garenne-dropped-bytes"),
    ("garenne-dropped-headers", "garenne-dropped-headers"),
    ("garenne-error", "garenne-error"),
    ("garenne-expires-at", "garenne-expires-at"),
    ("garenne-first-seen", "garenne-first-seen"),
    ("garenne-lane", "garenne-lane"),
    ("garenne-not-before", "garenne-not-before"),
    ("garenne-parent", "garenne-parent"),
    ("garenne-quarantine-worker", "garenne-quarantine"),
    ("garenne-quarantine-runs", "garenne-quarantine"),
    ("garenne-reason", "garenne-reason"),
    ("garenne-replayed-at", "garenne-replayed-at"),
    ("garenne-user-id", "garenne-user-id"),
    ("garenne-worker", "garenne-worker"),
];

/// Values that workers never set for most of these headers.
fn hostile_values() -> Vec<AMQPValue> {
    let nested = headers([("a", AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void])))]);
    let long = |bytes| text(&"x".repeat(bytes));
    vec![
        long(1),
        long(239),
        long(255),
        long(256),
        long(6_000),
        text(""),
        text("slow"),
        text("no-such-lane"),
        (-1_i64).into(),
        0.into(),
        1_000_000.into(),
        i64::MAX.into(),
        i64::MIN.into(),
        true.into(),
        AMQPValue::Double(f64::MIN_POSITIVE),
        AMQPValue::Timestamp(u64::MAX),
        AMQPValue::LongString(vec![0xff, 0xfe, 0x00].into()),
        AMQPValue::FieldTable(nested),
        AMQPValue::Void,
    ]
}

/// Properties that a foreign publisher may send.
fn hostile() -> Vec<BasicProperties> {
    let mut all = Vec::new();
    for value in hostile_values() {
        for (name, _) in INTERNAL {
            all.push(BasicProperties::default().with_headers(headers([(name, value.clone())])));
        }
        let mut table = FieldTable::default();
        for (name, _) in INTERNAL {
            table.insert(name.into(), value.clone());
        }
        all.push(BasicProperties::default().with_headers(table));
    }
    let forged = headers([
        ("garenne-lane", text(&"x".repeat(239))),
        ("garenne-quarantine-worker", true.into()),
        ("garenne-quarantine-runs", 1_000_000.into()),
    ]);
    all.push(BasicProperties::default().with_headers(forged));
    // Milliseconds, microseconds, nanoseconds and the maximum instead of seconds.
    for timestamp in [1_800_000_000_000, 1_800_000_000_000_000, 1_800_000_000_000_000_000, u64::MAX] {
        let stamped = BasicProperties::default().with_timestamp(timestamp);
        let group = headers([("garenne-group", text("g"))]);
        all.push(stamped.with_expiration("600000".into()).with_headers(group));
    }
    all
}

#[tokio::test]
async fn internal_headers_of_foreign_publishers_do_not_affect_other_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("w")?.stdout().option("--max-attempts", "2");
    let mut worker = plan.start().await?;
    // A stop directive for another group, so that the worker compares times of tasks with a group.
    env.garenne(&["task", "stop", "--group", "other"]).await?;
    let mut ids = BTreeSet::new();
    let good = env.publish("bench.noop", &json!({}), "good", 150).await?;
    let routes = [
        ("garenne.tasks", "bench.noop", "tasks"),
        ("", "garenne.tasks.fast", "lane"),
        ("", "garenne.quarantine", "quarantine"),
    ];
    for (exchange, key, route) in routes {
        for (n, properties) in hostile().into_iter().enumerate() {
            // One task succeeds; one goes through a retry queue, and the headers of its copy are accepted.
            for (kind, body) in [("bench.noop", "{}"), ("bench.fail", r#"{"times":99}"#)] {
                // The quarantine runs tasks one at a time, so it gets only half of them.
                if route == "quarantine" && kind == "bench.noop" {
                    continue;
                }
                let id = format!("{route}-{kind}-{n}");
                let key = if exchange.is_empty() { key } else { kind };
                let properties =
                    properties.clone().with_message_id(id.as_str().into()).with_type(kind.into());
                env.client().publish(exchange, key, properties, body.as_bytes()).await?;
                ids.insert(id);
            }
        }
    }
    env.publish("bench.noop", &json!({}), "late", 150).await?;
    ids.extend(good);
    ids.extend((0..150).map(|n| format!("late-{n}")));

    eventually("every task is done or a dead letter", async || {
        let (done, dead) = (worker.done()?.len(), env.client().ready("garenne.dead").await?);
        Ok(Seen::when(done + dead >= ids.len(), format_args!("{done} done, {dead} dead of {}", ids.len())))
    })
    .await?;
    let done = worker.done()?;
    let dead = env.take_all("garenne.dead", ids.len() - done.len()).await?;
    let mut ended = BTreeSet::new();
    for dead in &dead {
        let (reason, error) = (dead.text("garenne-reason"), dead.text("garenne-error"));
        let id = dead.id();
        let expected: &[&str] = match id.split('-').next() {
            // Their internal headers are ignored.
            Some("tasks") => &["attempts-exhausted"],
            _ => &["attempts-exhausted", "malformed", "expired"],
        };
        assert!(expected.contains(&reason.as_str()), "{id}: {reason}: {error}");
        assert!(reason != "malformed" || error.starts_with("header garenne-"), "{id}: {error}");
        assert!(!error.is_empty() && error.len() <= 1000, "{id}: {error}");
        assert_eq!(dead.text("garenne-worker"), "w", "{id}");
        assert!(ended.insert(id.to_owned()), "{id} has two dead letters");
    }
    for done in done {
        assert!(
            ended.insert(done.task_id.clone()),
            "{} is done twice, or done and a dead letter",
            done.task_id
        );
    }
    assert_eq!(ended, ids);
    let must_succeed =
        |id: &&String| id.starts_with("good") || id.starts_with("late") || id.contains("tasks-bench.noop");
    let not_done: Vec<_> =
        ids.iter().filter(must_succeed).filter(|id| dead.iter().any(|it| it.id() == **id)).collect();
    assert!(not_done.is_empty(), "{not_done:?}");

    // The worker reports that it is ready, and still runs tasks.
    worker.until_ready().await?;
    env.publish("bench.fail", &json!({"times": 1}), "after", 50).await?;
    for n in 0..50 {
        worker.until_done_with(&format!("after-{n}")).await?;
    }
    let reconnects = worker.metric("garenne_reconnects_total", &["role=\"publish\""]).await?;
    assert!(reconnects.abs() < f64::EPSILON, "{reconnects}");
    let least = 2.0 * hostile_values().len() as f64;
    for (name, label) in INTERNAL {
        let label = format!("header=\"{label}\"");
        let ignored = worker.metric("garenne_headers_ignored_total", &[label.as_str()]).await?;
        assert!(ignored >= least, "{name}: {ignored} of at least {least}");
    }
    worker.stop().await.map(drop)
}

/// Headers of the quarantine have no effect in a lane: a requeued task stays in the lane's queue.
#[tokio::test]
async fn forged_quarantine_headers_do_not_move_requeued_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("stopping")?.stdout().lane("fast:prefetch=10,concurrency=1..1").start().await?;
    let forged_headers =
        headers([("garenne-quarantine-worker", true.into()), ("garenne-quarantine-runs", 2_i64.into())]);
    for (exchange, key) in [("garenne.tasks", "bench.sleep"), ("", "garenne.tasks.fast")] {
        let forged =
            with_id(&format!("to{key}")).with_type("bench.sleep".into()).with_headers(forged_headers.clone());
        env.client().publish(exchange, key, forged, br#"{"ms":600000}"#).await?;
    }
    worker.until_holds("fast", 1, 1).await?;
    worker.signal(Signal::QUIT)?;
    let receipt = worker.stopped().await?.receipt;
    assert_eq!((receipt.requeued, receipt.quarantined), (2, 0), "{receipt:?}");
    env.is_empty("garenne.quarantine").await?;
    env.take_all("garenne.tasks.fast", 2).await.map(drop)
}

/// Headers that fit into a frame as published, but not with the headers that a copy adds.
#[tokio::test]
async fn headers_too_large_to_copy_are_left_out_of_copies_with_a_note() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("copying")?.stdout().option("--max-attempts", "3").start().await?;
    let mut many = FieldTable::default();
    for n in 0..1150 {
        many.insert(format!("header-{n:04}").as_str().into(), text(&"x".repeat(95)));
    }
    let large = [
        ("one-large", headers([("large", text(&"x".repeat(100_000))), ("small", text("kept"))]), 1, 100_011),
        (
            "at-the-limit",
            headers([("large", text(&"x".repeat(130_700))), ("small", text("kept"))]),
            1,
            130_711,
        ),
    ];
    for (id, table, _, _) in &large {
        let properties = with_id(id).with_headers(table.clone());
        env.client().publish("garenne.tasks", "bench.fail", properties, br#"{"times":99}"#).await?;
    }
    let properties = with_id("many-small").with_headers(many);
    env.client().publish("garenne.tasks", "bench.fail", properties, br#"{"times":99}"#).await?;
    let good = env.publish("bench.fail", &json!({"times": 1}), "good", 50).await?;
    for id in &good {
        worker.until_done_with(id).await?;
    }

    let dead = env.take_all("garenne.dead", 3).await?;
    let letter = |id: &str| dead.iter().find(|dead| dead.id() == id).expect("each task has a dead letter");
    for (id, _, count, bytes) in large {
        let letter = letter(id);
        assert_eq!(letter.text("garenne-reason"), "attempts-exhausted", "{id}");
        let note = (letter.number("garenne-dropped-headers"), letter.number("garenne-dropped-bytes"));
        assert_eq!(note, (Some(count), Some(bytes)), "{id}");
        assert_eq!((letter.text("small").as_str(), letter.has("large")), ("kept", false), "{id}");
    }
    let many = letter("many-small");
    // Each takes 12 bytes for the name, 5 for type and length, and 95 for the value: 292 of them fit into 32 KiB.
    assert_eq!(many.number("garenne-dropped-headers"), Some(1150 - 292));
    assert_eq!(many.number("garenne-dropped-bytes"), Some((1150 - 292) * 112));
    assert_eq!(many.text("header-0000").len() + many.text("header-1149").len(), 95);
    let reconnects = worker.metric("garenne_reconnects_total", &["role=\"publish\""]).await?;
    assert!(reconnects.abs() < f64::EPSILON, "{reconnects}");
    worker.stop().await.map(drop)
}

/// A task that fits into the worker's frames, while its copies do not.
#[tokio::test]
async fn a_copy_above_the_frame_limit_becomes_a_dead_letter_without_foreign_headers() -> Result<()> {
    let env = TestEnv::new().await?;
    let url = format!("{}?frame_max=8192", env.worker_url());
    let plan = env.worker_through("small-frames", &url)?.env("GARENNE_UNKNOWN_KIND_WAIT", "0s");
    let worker = plan.stdout().start().await?;
    let large = headers([("large", text(&"x".repeat(8_050)))]);
    for (id, kind) in [("failing", "bench.fail"), ("unknown", "bench.nothing")] {
        let properties = with_id(id).with_headers(large.clone());
        env.client().publish("garenne.tasks", kind, properties, br#"{"times":99}"#).await?;
    }
    let good = env.publish("bench.fail", &json!({"times": 1}), "good", 20).await?;
    for id in &good {
        worker.until_done_with(id).await?;
    }
    let dead = env.take_all("garenne.dead", 2).await?;
    for (id, kind, reason, error) in [
        (
            "failing",
            "bench.fail",
            "too-large",
            "its copy cannot be published: the message's header frame has ",
        ),
        ("unknown", "bench.nothing", "unknown-kind", "no handler for kind "),
    ] {
        let letter = dead.iter().find(|dead| dead.id() == id).expect("each task has a dead letter");
        let actual = letter.text("garenne-error");
        assert_eq!(letter.text("garenne-reason"), reason, "{id}: {actual}");
        assert!(actual.starts_with(error), "{id}: {actual}");
        assert_eq!(letter.properties.kind().as_ref().map(|kind| kind.as_str()), Some(kind));
        assert_eq!(letter.body, br#"{"times":99}"#);
        assert!(letter.number("garenne-dropped-bytes").is_some_and(|bytes| bytes >= 8_061), "{id}");
        assert_eq!(letter.text("garenne-lane"), "fast");
    }
    let reconnects = worker.metric("garenne_reconnects_total", &["role=\"publish\""]).await?;
    assert!(reconnects.abs() < f64::EPSILON, "{reconnects}");
    let counted = worker.metric("garenne_dead_total", &["reason=\"too-large\""]).await?;
    assert!((counted - 1.0).abs() < f64::EPSILON, "{counted}");
    let receipt = worker.stop().await?.receipt;
    assert_eq!(receipt.dead, 2, "{receipt:?}");
    Ok(())
}
