//! A message that cannot be processed becomes a dead letter with its reason, and the worker continues.

use anyhow::Result;
use garenne_tests::harness::{
    client::{headers, text, with_id},
    process::Signal,
    test_env::TestEnv,
};
use lapin::{BasicProperties, types::AMQPValue};
use serde_json::json;

/// A message that cannot be processed, with the reason and a part of the error that its dead letter must have.
struct Bad {
    id: &'static str,
    kind: &'static str,
    properties: BasicProperties,
    body: Vec<u8>,
    reason: &'static str,
    error: &'static str,
}

impl Bad {
    fn new(
        (id, kind): (&'static str, &'static str),
        body: impl Into<Vec<u8>>,
        reason: &'static str,
        error: &'static str,
    ) -> Self {
        Self { id, kind, properties: with_id(id), body: body.into(), reason, error }
    }

    fn header(self, name: &str, value: AMQPValue) -> Self {
        Self { properties: self.properties.with_headers(headers([(name, value)])), ..self }
    }
}

fn bad_messages() -> Vec<Bad> {
    let all: Vec<u8> = (0..=255).collect();
    let mut odd_type =
        Bad::new(("odd-type", "bench.noop"), "{}", "malformed", "kind \"a kind\" may hold only");
    odd_type.properties = odd_type.properties.with_type("a kind".into());
    let mut expired = Bad::new(("expired", "bench.noop"), "{}", "expired", "expired before it started");
    // The broker counts the expiration from the message's arrival, so it does not expire there.
    expired.properties = expired.properties.with_timestamp(1_000_000_000).with_expiration("600000".into());
    vec![
        Bad::new(("broken-json", "bench.sleep"), "{\"ms\":", "malformed", "EOF while parsing"),
        Bad::new(("empty", "bench.noop"), "", "malformed", "the body is empty"),
        Bad::new(("binary", "bench.noop"), all, "malformed", "expected value"),
        Bad::new(
            ("no-such-kind", "bench.nothing"),
            "{}",
            "unknown-kind",
            "no handler for kind \"bench.nothing\"",
        ),
        Bad::new(
            ("wrong-type", "bench.sleep"),
            "{\"ms\":\"soon\"}",
            "invalid-payload",
            "invalid type: string \"soon\", expected u64",
        ),
        Bad::new(("missing-field", "bench.sleep"), "{}", "invalid-payload", "missing field `ms`"),
        Bad::new(
            ("out-of-range", "bench.factorial"),
            "{\"n\":171}",
            "invalid-payload",
            "n is 171; expected 0 to 170",
        ),
        Bad::new(("no-reading", "reading.process"), "{\"device\":\"d\"}", "invalid-payload", "metric"),
        Bad::new(
            ("too-large", "bench.noop"),
            vec![b' '; 10 << 20],
            "too-large",
            "the body has 10485760 bytes, max_payload allows 4194304",
        ),
        Bad::new(
            ("bad-header", "bench.noop"),
            "{}",
            "malformed",
            "header garenne-timeout-ms must be a whole number from 0 to 2592000000",
        )
        .header("garenne-timeout-ms", text("soon")),
        expired,
        odd_type,
    ]
}

#[tokio::test]
async fn bad_messages_become_dead_letters_and_do_not_affect_other_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("w")?.stdout().lane("fast:prefetch=20,concurrency=2..2");
    let plan = plan.env("GARENNE_UNKNOWN_KIND_WAIT", "0s");
    let worker = plan.start().await?;
    let pid = worker.id();
    let bad = bad_messages();
    for bad in &bad {
        env.client().publish("garenne.tasks", bad.kind, bad.properties.clone(), &bad.body).await?;
    }
    let mut dead = env.take_all("garenne.dead", bad.len()).await?;
    for Bad { id, kind, properties, body, reason, error } in &bad {
        let at = dead.iter().position(|dead| dead.id() == *id).expect("each message has a dead letter");
        let dead = dead.swap_remove(at);
        assert_eq!(dead.text("garenne-reason"), *reason, "{id}");
        let actual = dead.text("garenne-error");
        assert!(actual.contains(error) && !actual.contains('\n'), "{id}: {actual}");
        assert_eq!(dead.text("garenne-worker"), "w");
        assert_eq!(dead.text("garenne-lane"), "fast");
        assert!(dead.number("garenne-died-at").is_some_and(|at| at > 1_700_000_000_000), "{id}");
        assert!(dead.number("garenne-first-seen").is_some(), "{id}");
        assert!(dead.body == *body, "{id}: the body differs, it has {} bytes", dead.body.len());
        let expected = properties.kind().as_ref().map_or(*kind, |kind| kind.as_str());
        assert_eq!(dead.properties.kind().as_ref().map(|kind| kind.as_str()), Some(expected), "{id}");
    }

    // The same process runs the valid tasks that follow.
    env.publish("bench.noop", &json!({}), "good", 100).await?;
    worker.until_done(100).await?;
    assert_eq!(worker.id(), pid);
    // No credit is lost: under backlog, as many deliveries are unacked as the prefetch allows.
    env.until_lane("fast", 0, 0).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "backlog", 30).await?;
    env.until_lane("fast", 10, 20).await?;
    worker.signal(Signal::QUIT)?;
    let receipt = worker.stopped().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (100, bad.len() as u64), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn expiration_of_a_waiting_task_is_checked_before_its_start() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("slow")?.stdout().lane("fast:prefetch=10,concurrency=1..1");
    let worker = plan.start().await?;
    env.publish("bench.sleep", &json!({"ms": 10_000}), "running", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    // It is delivered in time and expires while it waits in the worker.
    let soon = with_id("late").with_expiration("500".into());
    env.client().publish("garenne.tasks", "bench.noop", soon, b"{}").await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("late", "expired"));
    assert!(dead.properties.expiration().is_none(), "a dead letter must not expire");
    assert!(dead.number("garenne-expires-at").is_some());
    let stopped = worker.stop().await?;
    assert_eq!((stopped.receipt.acked, stopped.receipt.dead), (1, 1));
    Ok(())
}
