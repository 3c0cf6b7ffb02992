//! Whatever comes in, the worker stays, says why it cannot use it, and goes on.

use anyhow::Result;
use garenne_tests::harness::{
    client::{headers, text, with_id},
    scene::Scene,
};
use lapin::BasicProperties;
use serde_json::json;

/// Broken messages and the reason and error that each must get.
fn bad() -> Vec<(&'static str, &'static str, BasicProperties, Vec<u8>, &'static str, &'static str)> {
    let id = with_id;
    let header = |name, value| headers([(name, value)]);
    vec![
        (
            "broken-json",
            "bench.sleep",
            id("broken-json"),
            b"{\"ms\":".to_vec(),
            "malformed",
            "EOF while parsing",
        ),
        ("empty", "bench.noop", id("empty"), Vec::new(), "malformed", "the body is empty"),
        ("binary", "bench.noop", id("binary"), (0..=255).collect(), "malformed", "expected value"),
        (
            "no-such-kind",
            "bench.nothing",
            id("no-such-kind"),
            b"{}".to_vec(),
            "unknown-kind",
            "no handler for kind \"bench.nothing\"",
        ),
        (
            "wrong-type",
            "bench.sleep",
            id("wrong-type"),
            b"{\"ms\":\"soon\"}".to_vec(),
            "invalid-payload",
            "invalid type: string \"soon\", expected u64",
        ),
        (
            "missing-field",
            "bench.sleep",
            id("missing-field"),
            b"{}".to_vec(),
            "invalid-payload",
            "missing field `ms`",
        ),
        (
            "out-of-range",
            "bench.factorial",
            id("out-of-range"),
            b"{\"n\":171}".to_vec(),
            "invalid-payload",
            "n is 171, 0 to 170 is allowed",
        ),
        (
            "no-reading",
            "reading.process",
            id("no-reading"),
            b"{\"device\":\"d\"}".to_vec(),
            "invalid-payload",
            "",
        ),
        (
            "too-large",
            "bench.noop",
            id("too-large"),
            vec![b' '; 10 << 20],
            "too-large",
            "the body has 10485760 bytes, max_payload allows 4194304",
        ),
        (
            "bad-header",
            "bench.noop",
            id("bad-header").with_headers(header("garenne-timeout-ms", text("soon"))),
            b"{}".to_vec(),
            "malformed",
            "header garenne-timeout-ms must be a whole number",
        ),
        (
            "bad-kind",
            "bench.noop",
            id("bad-kind").with_type("a kind".into()),
            b"{}".to_vec(),
            "malformed",
            "kind \"a kind\" may hold only",
        ),
        (
            "expired",
            "bench.noop",
            id("expired").with_headers(header("garenne-expires-at", 1_000_000_000_000_i64.into())),
            b"{}".to_vec(),
            "expired",
            "expired before it started",
        ),
    ]
}

#[tokio::test]
async fn bad_messages_are_dead_with_their_reason_and_harm_nobody() -> Result<()> {
    let scene = Scene::new().await?;
    let plan = scene.worker("sturdy")?.stdout().lane("fast:prefetch=20,concurrency=2..2");
    let worker = plan.start().await?;
    let pid = worker.id();
    let bad = bad();
    for (_, key, properties, body, ..) in &bad {
        scene.client().publish("garenne.tasks", key, properties.clone(), body).await?;
    }
    let mut dead = scene.take_all("garenne.dead", bad.len()).await?;
    for (id, key, _, body, reason, error) in &bad {
        let at = dead.iter().position(|dead| dead.id() == *id).expect("a dead letter for each");
        let dead = dead.swap_remove(at);
        assert_eq!(dead.text("garenne-reason"), *reason, "{id}");
        let said = dead.text("garenne-error");
        assert!(said.contains(error) && !said.is_empty() && !said.contains('\n'), "{id}: {said}");
        assert_eq!(dead.text("garenne-worker"), "sturdy");
        assert_eq!(dead.text("garenne-lane"), "fast");
        assert!(dead.number("garenne-died-at").is_some_and(|at| at > 1_700_000_000_000), "{id}");
        assert!(dead.number("garenne-first-seen").is_some(), "{id}");
        assert!(dead.body == *body, "{id}: another body of {} bytes", dead.body.len());
        let kind = dead.properties.kind().as_ref().map(|kind| kind.as_str());
        assert_eq!(kind, Some(if *id == "bad-kind" { "a kind" } else { *key }), "{id}");
    }

    // The next good ones are done by the same process.
    scene.publish("bench.noop", &json!({}), "good", 100).await?;
    worker.until_done(100).await?;
    assert_eq!(worker.id(), pid);
    // Its credit is whole again: under backlog the broker has as many outstanding as ever.
    scene.until_lane("fast", 0, 0).await?;
    scene.publish("bench.sleep", &json!({"ms": 600_000}), "backlog", 30).await?;
    scene.until_lane("fast", 10, 20).await?;
    let receipt = {
        worker.signal(garenne_tests::harness::process::Signal::QUIT)?;
        worker.stopped().await?.receipt
    };
    assert_eq!((receipt.acked, receipt.dead), (100, bad.len() as u64), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn queued_expiration_is_checked_before_the_start() -> Result<()> {
    let scene = Scene::new().await?;
    let plan = scene.worker("slow")?.stdout().lane("fast:prefetch=10,concurrency=1..1");
    let worker = plan.start().await?;
    scene.publish("bench.sleep", &json!({"ms": 1500}), "running", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    // Delivered in time, but its turn comes too late.
    let soon = with_id("late").with_expiration("500".into());
    scene.client().publish("garenne.tasks", "bench.noop", soon, b"{}").await?;
    let dead = scene.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("late", "expired"));
    assert!(dead.properties.expiration().is_none(), "a dead letter that expires is lost");
    assert!(dead.number("garenne-expires-at").is_some());
    let stopped = worker.stop().await?;
    assert_eq!((stopped.receipt.acked, stopped.receipt.dead), (1, 1));
    Ok(())
}
