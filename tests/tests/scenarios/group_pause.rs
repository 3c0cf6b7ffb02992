//! An operator pauses a group of tasks. No worker starts its tasks, also workers that start later. The tasks do not
//! occupy the workers' queues, none is lost, and none spends an attempt.

use anyhow::Result;
use garenne_tests::harness::{
    client::{headers, text, with_id},
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::WorkerPlan,
};
use serde_json::{Value, json};

const GROUP: &str = "import-7";

async fn publish_grouped(env: &TestEnv, kind: &str, id: &str, payload: Value) -> Result<()> {
    let properties = with_id(id).with_headers(headers([("garenne-group", text(GROUP))]));
    env.client().publish("garenne.tasks", kind, properties, payload.to_string().as_bytes()).await?;
    Ok(())
}

/// A small prefetch, which held tasks would soon exhaust, and retry delays that a test can wait for.
fn small(plan: WorkerPlan) -> WorkerPlan {
    plan.stdout().lane("fast:prefetch=4,concurrency=2..2").env("GARENNE_RETRY__DELAYS", "1s")
}

/// The paused groups that workers report.
async fn paused(env: &TestEnv) -> Result<Vec<Value>> {
    // The exit code is 1 because queues of the console's own retry settings are missing.
    let status = env.try_garenne(&["status", "--json"]).await?.stdout.join("\n");
    let status: Value = serde_json::from_str(&status)?;
    let workers = status["workers"].as_array().into_iter().flatten();
    Ok(workers.flat_map(|worker| worker["paused"].as_array().cloned().unwrap_or_default()).collect())
}

#[tokio::test]
async fn a_pause_applies_to_workers_that_start_later_and_occupies_none_of_them() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    env.garenne(&["group", "pause", GROUP]).await?;
    for n in 0..20 {
        publish_grouped(&env, "bench.noop", &format!("held-{n}"), json!({})).await?;
    }
    let first = small(env.worker("first")?).start().await?;
    env.publish("bench.noop", &json!({}), "other", 3).await?;
    let done = first.until_done(3).await?;
    assert!(done.iter().all(|done| done.task_id.starts_with("other-")), "{done:?}");
    eventually("the status shows the pause", async || {
        let paused = paused(&env).await?;
        Ok(Seen::when(paused == [GROUP], format_args!("{paused:?}")))
    })
    .await?;
    let receipt = first.stop().await?.receipt;
    assert!(receipt.retried > 0 && receipt.acked == 3 && receipt.dead == 0, "{receipt:?}");

    let second = small(env.worker("second")?).start().await?;
    env.publish("bench.noop", &json!({}), "another", 1).await?;
    assert_eq!(second.until_done(1).await?[0].task_id, "another-0");
    env.garenne(&["group", "resume", GROUP]).await?;
    let done = second.until_done(21).await?;
    assert!(done.iter().all(|done| done.attempt == 1), "no attempt was spent: {done:?}");
    let receipt = second.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (21, 0), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn a_pause_defers_tasks_that_already_wait_in_a_worker() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("w")?.stdout().lane("fast:prefetch=4,concurrency=1..1");
    let worker = plan.env("GARENNE_RETRY__DELAYS", "1s").start().await?;
    publish_grouped(&env, "bench.sleep", "running", json!({"ms": 600_000})).await?;
    worker.until_holds("fast", 1, 0).await?;
    publish_grouped(&env, "bench.noop", "waiting", json!({})).await?;
    worker.until_holds("fast", 1, 1).await?;
    env.garenne(&["group", "pause", GROUP]).await?;
    eventually("the status shows the pause", async || {
        let paused = paused(&env).await?;
        Ok(Seen::when(paused == [GROUP], format_args!("{paused:?}")))
    })
    .await?;
    worker.until_holds("fast", 1, 1).await?;
    // The running task ends; the paused one that waited behind it must not start.
    env.garenne(&["task", "stop", "running"]).await?;
    env.publish("bench.noop", &json!({}), "other", 1).await?;
    worker.until_done_with("other-0").await?;
    assert_eq!(worker.until_done(1).await?.len(), 1);
    env.garenne(&["group", "resume", GROUP]).await?;
    assert_eq!(worker.until_done_with("waiting").await?.attempt, 1);
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (2, 1), "{receipt:?}");
    assert!(receipt.retried > 0, "{receipt:?}");
    Ok(())
}
