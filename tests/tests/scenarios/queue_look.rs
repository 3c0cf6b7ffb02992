//! An operator looks for a task and at the queues. A look keeps every message and its order, and takes none from workers.

use anyhow::{Context, Result};
use garenne_protocol::task::{ContentType, Kind, NewTask, TaskId, batch_properties, write_batch};
use garenne_tests::harness::{
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::{Value, json};

const FAST: &str = "garenne.tasks.fast";

/// The exit code and the errors of a command that fails.
async fn refused(env: &TestEnv, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let ended = env.try_garenne(arguments).await?;
    Ok((ended.code, ended.stderr.join("\n")))
}

fn json_lines(lines: &[String]) -> Result<Vec<Value>> {
    lines.iter().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

async fn ids(env: &TestEnv, queue: &str) -> Result<Vec<String>> {
    let listed = json_lines(&env.garenne(&["queue", "list", queue, "--json"]).await?.stdout)?;
    listed.iter().map(|task| Ok(task["id"].as_str().context("id")?.to_owned())).collect()
}

#[tokio::test]
async fn a_queue_without_consumers_is_listed_and_searched_and_keeps_its_order() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    // More than two groups of a walk.
    env.publish("bench.noop", &json!({}), "task", 60).await?;
    let kind = Kind::parse("bench.noop").map_err(anyhow::Error::msg)?;
    let record = NewTask {
        id: TaskId::parse("in-batch").map_err(anyhow::Error::msg)?,
        ..NewTask::new(kind.clone(), ContentType::Json, b"{}".to_vec())
    };
    let properties = batch_properties(&kind, None, std::time::SystemTime::now());
    env.client().publish("garenne.tasks", "bench.noop", properties, &write_batch([&record])?).await?;
    env.until_ready_in(FAST, 61).await?;

    let first = ids(&env, FAST).await?;
    let expected: Vec<_> = (0..60).map(|n| format!("task-{n}")).collect();
    assert_eq!(first[..60], expected);
    for _ in 0..3 {
        assert_eq!(ids(&env, FAST).await?, first);
    }
    let listed = json_lines(&env.garenne(&["queue", "list", FAST, "--json"]).await?.stdout)?;
    assert_eq!((&listed[0]["kind"], &listed[0]["batch_of"]), (&json!("bench.noop"), &Value::Null));
    assert_eq!(listed[60]["batch_of"], 1);

    let found = env.garenne(&["task", "find", "task-7", "--json"]).await?.stdout.join("\n");
    let found: Value = serde_json::from_str(&found)?;
    assert_eq!((&found["queued"][0]["id"], &found["queued"][0]["queue"]), (&json!("task-7"), &json!(FAST)));
    let found = env.garenne(&["task", "find", "in-batch"]).await?.stdout.join("\n");
    assert!(found.contains(FAST) && found.contains("bench.noop (batch of 1)"), "{found}");
    let (code, error) = refused(&env, &["task", "find", "missing"]).await?;
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("no task \"missing\" is in what was searched"), "{error}");

    // The user for operators may not take tasks.
    let (code, error) = refused(&env, &["--prefix", "garenne", "task", "find", "task-7"]).await?;
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("not searched: garenne.tasks.fast: the broker denied access"), "{error}");

    let (code, error) = refused(&env, &["queue", "list", FAST, "--max", "60"]).await?;
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("61 messages are more than --max 60"), "{error}");
    let (code, error) = refused(&env, &["queue", "list", "garenne.directives"]).await?;
    assert_eq!(code, Some(2), "{error}");
    assert_eq!(ids(&env, FAST).await?, first);
    Ok(())
}

#[tokio::test]
async fn a_consumed_queue_is_not_looked_at_and_a_paused_lane_is() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("w")?.stdout().lane("fast:prefetch=2,concurrency=1..1").start().await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "running", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    env.publish("bench.noop", &json!({}), "waiting", 5).await?;
    worker.until_holds("fast", 1, 1).await?;

    let (code, error) = refused(&env, &["queue", "list", FAST]).await?;
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("1 consumers would miss its 4 messages meanwhile"), "{error}");
    // It looks once, and a worker has a second to answer.
    eventually("the running task is found", async || {
        let found = env.garenne(&["task", "find", "running-0"]).await?.stdout.join("\n");
        Ok(Seen::when(found.contains("running on w"), found))
    })
    .await?;
    let (code, error) = refused(&env, &["task", "find", "waiting-4"]).await?;
    assert_eq!(code, Some(1), "{error}");
    assert!(
        error.contains("not searched: garenne.tasks.fast: 1 consumers would miss its 4 messages"),
        "{error}"
    );

    env.garenne(&["lane", "pause", "fast"]).await?;
    worker.until_holds("fast", 1, 0).await?;
    env.until_ready_in(FAST, 5).await?;
    // The broker counts the consumer until its running task has ended.
    let listed = env.garenne(&["queue", "list", FAST, "--despite-consumers", "--json"]).await?.stdout;
    assert_eq!(listed.len(), 5);
    let found = env.garenne(&["task", "find", "waiting-4", "--despite-consumers"]).await?.stdout.join("\n");
    assert!(found.contains(FAST), "{found}");
    env.garenne(&["task", "stop", "running-0"]).await?;
    worker.until_holds("fast", 0, 0).await?;
    eventually("the broker counts the consumer no more", async || {
        let ended = env.garenne(&["queue", "list", FAST, "--json"]).await?;
        Ok(Seen::when(ended.stdout.len() == 5, format_args!("{ended:?}")))
    })
    .await?;
    env.garenne(&["lane", "resume", "fast"]).await?;
    let done = worker.until_done(5).await?;
    assert!(done.iter().all(|done| done.attempt == 1), "{done:?}");
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn tasks_that_wait_for_a_retry_are_listed_and_return_in_time() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let worker = env.worker("w")?.stdout().start().await?;
    env.publish("bench.fail", &json!({"times": 1}), "failing", 1).await?;
    worker
        .until_metric("garenne_settlements_total", &["lane=\"fast\"", "settlement=\"retried\""], 1.0)
        .await?;
    // It waits for a second at least.
    let listed = env.garenne(&["task", "waiting", "--lane", "fast", "--json"]).await?.stdout;
    let listed = json_lines(&listed)?;
    if let [task] = &listed[..] {
        assert_eq!((&task["id"], &task["attempts"]), (&json!("failing-0"), &json!(1)), "{task}");
    } else {
        // A slow host: it has returned already.
        assert!(listed.is_empty(), "{listed:?}");
    }
    let (code, error) = refused(&env, &["task", "waiting", "--lane", "fats"]).await?;
    assert_eq!(code, Some(2), "{error}");
    assert_eq!(worker.until_done_with("failing-0").await?.attempt, 2);
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_purge_needs_a_confirmation_and_is_on_record() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    env.publish("bench.noop", &json!({}), "task", 7).await?;
    env.until_ready_in(FAST, 7).await?;
    let (code, error) = refused(&env, &["queue", "purge", FAST]).await?;
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("purge removes the 7 ready messages"), "{error}");
    env.until_ready_in(FAST, 7).await?;
    let printed = env.garenne(&["queue", "purge", FAST, "--yes"]).await?.stdout;
    assert_eq!(printed, ["removed 7 messages of garenne.tasks.fast"]);
    env.until_ready_in(FAST, 0).await?;
    let records = json_lines(&env.garenne(&["audit", "list", "--json"]).await?.stdout)?;
    let states: Vec<_> = records.iter().map(|it| (&it["command"], &it["state"])).collect();
    let purge = json!("queue.purge");
    assert_eq!(states, [(&purge, &json!("started")), (&purge, &json!("done"))]);
    assert_eq!(
        (&records[1]["arguments"]["queue"], &records[1]["result"]["removed"]),
        (&json!(FAST), &json!(7))
    );
    Ok(())
}
