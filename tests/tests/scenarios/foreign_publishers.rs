//! Any AMQP client can publish a task; it only needs a routing key.

use std::{env, process::Command};

use anyhow::{Context, Result, bail};
use garenne_tests::harness::{suite, test_env::TestEnv};
use lapin::BasicProperties;
use serde_json::json;

/// Whether tests of this client are skipped: `./dev test` lists in `GARENNE_TEST_WITHOUT` what cannot be installed.
fn left_out(client: &str) -> bool {
    let left_out =
        env::var("GARENNE_TEST_WITHOUT").is_ok_and(|list| list.split(',').any(|name| name.trim() == client));
    if left_out {
        suite::leave_out(format_args!("{client} is not installed"));
    }
    left_out
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| {
        format!(
            "{command:?}; `./dev test` installs what the tests need, GARENNE_TEST_WITHOUT skips its tests"
        )
    })?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn pika(env: &TestEnv, arguments: &[&str]) -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/publish.py");
    // Debian installs pika for its own Python, which is not always the first one in PATH.
    let python = env::var("GARENNE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    run(Command::new(python).arg(script).arg(env.vhost().amqp_url()).args(arguments))
}

#[tokio::test]
async fn pika_needs_only_a_routing_key() -> Result<()> {
    if left_out("pika") {
        return Ok(());
    }
    let env = TestEnv::new().await?;
    let worker = env.worker("any")?.stdout().start().await?;
    pika(&env, &["garenne.tasks", "bench.factorial", r#"{"n": 5}"#, "3"])?;
    let done = worker.until_done(3).await?;
    for done in &done {
        assert_eq!((done.kind.as_str(), done.attempt), ("bench.factorial", 1));
        assert_eq!(done.output, json!({"factorial": 120.0}));
    }
    // The worker assigned different ids.
    assert!(done[0].task_id != done[1].task_id && !done[0].task_id.is_empty(), "{done:?}");
    assert_eq!(worker.stop().await?.receipt.acked, 3);
    Ok(())
}

#[tokio::test]
async fn pika_can_publish_to_the_queue_directly() -> Result<()> {
    if left_out("pika") {
        return Ok(());
    }
    let env = TestEnv::new().await?;
    let plan = env.worker("any")?.stdout().env("GARENNE_LANES__FAST__DEFAULT_KIND", "bench.factorial");
    let worker = plan.start().await?;
    pika(&env, &["", "garenne.tasks.fast", r#"{"n": 3}"#])?;
    let done = worker.until_done(1).await?.remove(0);
    assert_eq!((done.kind.as_str(), done.output), ("bench.factorial", json!({"factorial": 6.0})));
    Ok(())
}

#[tokio::test]
async fn amqp_publish_needs_only_a_routing_key() -> Result<()> {
    if left_out("amqp-publish") {
        return Ok(());
    }
    let env = TestEnv::new().await?;
    let worker = env.worker("any")?.stdout().start().await?;
    let reading =
        r#"{"device":"d1","metric":"temperature","value":21.5,"unit":"Cel","time":"2026-01-01T00:00:00Z"}"#;
    run(Command::new("amqp-publish")
        .arg(format!("--url={}", env.vhost().amqp_url()))
        .args(["--exchange=garenne.tasks", "--routing-key=reading.process"])
        .arg(format!("--body={reading}")))?;
    let done = worker.until_done(1).await?.remove(0);
    assert_eq!((done.kind.as_str(), done.attempt), ("reading.process", 1));
    assert_eq!(done.output["readings"][0]["value"], 21.5);
    Ok(())
}

/// A task whose routing key is no known kind runs as the lane's default kind. Without a default kind it becomes a
/// dead letter.
#[tokio::test]
async fn tasks_with_unknown_routing_keys_have_the_default_kind() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("default")?.stdout().env("GARENNE_LANES__FAST__DEFAULT_KIND", "bench.noop");
    let worker = plan.start().await?;
    let bare = BasicProperties::default;
    env.client().publish("", "garenne.tasks.fast", bare(), b"{}").await?;
    env.client().publish("garenne.tasks", "reading.of.something", bare(), b"{}").await?;
    let typed = bare().with_type("bench.factorial".into());
    env.client().publish("", "garenne.tasks.fast", typed, br#"{"n":4}"#).await?;
    let mut kinds: Vec<_> = worker.until_done(3).await?.into_iter().map(|done| done.kind).collect();
    kinds.sort();
    assert_eq!(kinds, ["bench.factorial", "bench.noop", "bench.noop"]);
    worker.stop().await?;

    let strict = env.worker("strict")?.env("GARENNE_UNKNOWN_KIND_WAIT", "0s").stdout().start().await?;
    env.client().publish("", "garenne.tasks.fast", bare(), b"{}").await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!(dead.text("garenne-reason"), "unknown-kind");
    assert_eq!(dead.text("garenne-error"), "no handler for kind \"garenne.tasks.fast\" on any worker");
    assert_eq!(strict.stop().await?.receipt.dead, 1);
    Ok(())
}
