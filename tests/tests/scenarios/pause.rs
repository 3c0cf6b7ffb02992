//! An operator pauses a lane or a kind. Workers that run and workers that start later take none of the lane's tasks and
//! start none of the kind's. No task is lost, and none spends an attempt.

use anyhow::{Context, Result};
use garenne_tests::harness::{
    client::{headers, text, with_id},
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::WorkerPlan,
};
use serde_json::{Value, json};

/// A small prefetch and retry delays that a test can wait for.
fn small(plan: WorkerPlan) -> WorkerPlan {
    plan.stdout().lane("fast:prefetch=4,concurrency=1..1").env("GARENNE_RETRY__DELAYS", "1s")
}

/// The status of the fleet.
async fn status(env: &TestEnv) -> Result<Value> {
    // The exit code is 1 because queues of the console's own retry settings are missing.
    let status = env.try_garenne(&["status", "--json"]).await?.stdout.join("\n");
    serde_json::from_str(&status).context(status)
}

/// Waits until these workers, and no others, report that they have paused the lane `fast`.
async fn until_paused(env: &TestEnv, expected: &[&str]) -> Result<()> {
    eventually("the status shows the pause", async || {
        let status = status(env).await?;
        let workers = status["workers"].as_array().context("workers")?.iter();
        let paused = workers.filter(|worker| worker["lanes"]["fast"]["paused"] == true);
        let mut paused: Vec<_> = paused.filter_map(|worker| worker["id"].as_str()).collect();
        paused.sort_unstable();
        Ok(Seen::when(paused == expected, format_args!("{status:#}")))
    })
    .await
}

/// Waits until the queue has this number of ready messages and of consumers.
async fn until_queue_has(env: &TestEnv, ready: u64, consumers: u64) -> Result<()> {
    eventually("the lane's queue", async || {
        let status = status(env).await?;
        let lanes = status["lanes"].as_array().context("lanes")?;
        let fast = lanes.iter().find(|lane| lane["name"] == "fast").context("lane fast")?;
        let seen = (fast["ready"].as_u64(), fast["consumers"].as_u64());
        Ok(Seen::when(seen == (Some(ready), Some(consumers)), format_args!("{seen:?}")))
    })
    .await
}

#[tokio::test]
async fn a_paused_lane_keeps_its_tasks_in_its_queue_until_it_is_resumed() -> Result<()> {
    let env = TestEnv::new().await?;
    let first = small(env.worker("first")?).start().await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "running", 1).await?;
    first.until_holds("fast", 1, 0).await?;
    env.publish("bench.noop", &json!({}), "waiting", 10).await?;
    first.until_holds("fast", 1, 3).await?;

    env.garenne(&["lane", "pause", "fast"]).await?;
    // The running task goes on. Those that waited in the worker are back in the queue. The broker counts the consumer
    // until the running task is settled.
    first.until_holds("fast", 1, 0).await?;
    until_queue_has(&env, 10, 1).await?;
    until_paused(&env, &["first"]).await?;

    // A worker that starts later takes nothing either.
    let second = small(env.worker("second")?).start().await?;
    until_paused(&env, &["first", "second"]).await?;
    until_queue_has(&env, 10, 1).await?;

    env.garenne(&["task", "stop", "running-0"]).await?;
    first.until_holds("fast", 0, 0).await?;
    until_queue_has(&env, 10, 0).await?;

    env.garenne(&["lane", "resume", "fast"]).await?;
    until_paused(&env, &[]).await?;
    until_queue_has(&env, 0, 2).await?;
    let (first, second) = (first.stop().await?, second.stop().await?);
    let done: Vec<_> = first.done.iter().chain(&second.done).collect();
    assert_eq!(done.len(), 10, "{done:?}");
    assert!(done.iter().all(|done| done.attempt == 1), "no attempt was spent: {done:?}");
    let [first, second] = [first.receipt, second.receipt];
    assert_eq!((first.acked + second.acked, first.dead, first.requeued), (10, 1, 3), "{first:?} {second:?}");
    assert_eq!((first.retried, second.retried), (0, 0), "no copies: {first:?} {second:?}");
    Ok(())
}

#[tokio::test]
async fn a_retry_of_a_paused_lane_waits_in_its_queue_and_a_drain_of_its_worker_loses_nothing() -> Result<()> {
    let env = TestEnv::new().await?;
    // The pause must arrive before the retry does.
    let first = small(env.worker("first")?).env("GARENNE_RETRY__DELAYS", "20s").start().await?;
    env.publish("bench.fail", &json!({"times": 1}), "failing", 1).await?;
    first
        .until_metric("garenne_settlements_total", &["lane=\"fast\"", "settlement=\"retried\""], 1.0)
        .await?;
    env.garenne(&["lane", "pause", "fast"]).await?;
    until_paused(&env, &["first"]).await?;
    until_queue_has(&env, 1, 0).await?;
    let receipt = first.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.retried), (1, 1), "{receipt:?}");

    let second = small(env.worker("second")?).start().await?;
    until_paused(&env, &["second"]).await?;
    env.garenne(&["lane", "resume", "fast"]).await?;
    assert_eq!(second.until_done_with("failing-0").await?.attempt, 2);
    second.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_paused_kind_is_deferred_and_other_kinds_of_its_lane_go_on() -> Result<()> {
    paused_kind_is_deferred("bench.noop").await
}

#[tokio::test]
async fn the_kinds_of_a_paused_pattern_are_deferred() -> Result<()> {
    paused_kind_is_deferred("*.noop").await
}

/// Pauses `bench.noop` by this name.
async fn paused_kind_is_deferred(name: &str) -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let remark = env.garenne(&["kind", "pause", name]).await?.stderr.join("\n");
    assert!(
        remark.contains(&format!("none of the 0 workers that are heard has run a task of kind {name:?}")),
        "{remark}"
    );
    // More than the prefetch, so that held tasks would keep the others from being delivered.
    env.publish("bench.noop", &json!({}), "held", 20).await?;
    let worker = small(env.worker("w")?).start().await?;
    env.publish("bench.sleep", &json!({"ms": 1}), "other", 3).await?;
    let done = worker.until_done(3).await?;
    assert!(done.iter().all(|done| done.task_id.starts_with("other-")), "{done:?}");
    eventually("the status shows the pause", async || {
        let status = status(&env).await?;
        Ok(Seen::when(status["workers"][0]["paused_kinds"] == json!([name]), format_args!("{status:#}")))
    })
    .await?;

    env.garenne(&["kind", "resume", name]).await?;
    let done = worker.until_done(23).await?;
    assert!(done.iter().all(|done| done.attempt == 1), "no attempt was spent: {done:?}");
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (23, 0), "{receipt:?}");
    assert!(receipt.retried >= 20, "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn a_task_in_quarantine_does_not_run_while_its_lane_is_paused() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    env.garenne(&["lane", "pause", "fast"]).await?;
    let worker = small(env.worker("w")?).start().await?;
    until_paused(&env, &["w"]).await?;
    let properties = with_id("suspect").with_type("bench.noop".into());
    let properties = properties.with_headers(headers([("garenne-lane", text("fast"))]));
    env.client().publish("", "garenne.quarantine", properties, b"{}").await?;
    until_queue_has(&env, 1, 0).await?;
    env.garenne(&["lane", "resume", "fast"]).await?;
    assert_eq!(worker.until_done_with("suspect").await?.attempt, 1);
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn each_pause_is_recorded_and_an_unknown_name_is_remarked() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = small(env.worker("w")?).start().await?;
    // A worker that is asked has a second to answer.
    let wanted = "none of the 1 workers that are heard consumes lane \"fats\": check the name";
    eventually("the remark about an unknown lane", async || {
        let remark = env.garenne(&["lane", "pause", "fats"]).await?.stderr.join("\n");
        Ok(Seen::when(remark.contains(wanted), remark))
    })
    .await?;
    assert_eq!(env.garenne(&["lane", "pause", "fast"]).await?.stderr, [""; 0]);
    assert_eq!(env.garenne(&["lane", "resume", "fast"]).await?.stderr, [""; 0]);
    env.garenne(&["kind", "pause", "bench.noop"]).await?;
    let refused = env.try_garenne(&["lane", "pause", "quarantine"]).await?;
    assert_eq!(refused.code, Some(2), "{:?}", refused.stderr);

    let audit = env.garenne(&["audit", "list", "--json"]).await?.stdout;
    let records: Vec<Value> =
        audit.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
    let of = |command: &str| {
        let records = records.iter().filter(|record| record["command"] == command);
        records.map(|record| (record["state"].as_str(), &record["arguments"])).collect::<Vec<_>>()
    };
    let (fast, fats, kind) =
        (json!({"lane": "fast"}), json!({"lane": "fats"}), json!({"kind": "bench.noop"}));
    let both = |arguments| [(Some("started"), arguments), (Some("done"), arguments)];
    let pauses = of("lane.pause");
    assert_eq!(pauses[..2], both(&fats), "{records:#?}");
    assert_eq!(pauses[pauses.len() - 2..], both(&fast), "{records:#?}");
    assert_eq!(of("lane.resume"), both(&fast));
    assert_eq!(of("kind.pause"), both(&kind));
    worker.stop().await?;
    Ok(())
}
