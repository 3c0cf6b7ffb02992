//! A worker crashes: the broker requeues its deliveries, and another worker runs the tasks.

use std::collections::BTreeSet;

use anyhow::Result;
use garenne_tests::harness::test_env::TestEnv;
use serde_json::json;

#[tokio::test]
async fn tasks_of_a_killed_worker_are_redelivered() -> Result<()> {
    let env = TestEnv::new().await?;
    let victim = env.worker("victim")?.stdout().lane("fast:prefetch=10,concurrency=2..2").start().await?;
    env.publish("bench.noop", &json!({}), "done", 5).await?;
    victim.until_done(5).await?;
    env.until_lane("fast", 0, 0).await?;
    let running = env.publish("bench.deaf", &json!({"ms": 15_000}), "running", 2).await?;
    victim.until_holds("fast", 2, 0).await?;
    let waiting = env.publish("bench.noop", &json!({}), "waiting", 8).await?;
    victim.until_holds("fast", 2, 8).await?;
    assert_eq!(victim.kill().await?.len(), 5);

    let second = env.worker("second")?.stdout().start().await?;
    let done = second.until_done(10).await?;
    let ids: BTreeSet<_> = done.iter().map(|done| done.task_id.clone()).collect();
    assert_eq!(ids, running.into_iter().chain(waiting).collect());
    env.until_lane("fast", 0, 0).await?;
    assert_eq!(second.metric("garenne_redeliveries_total", &["lane=\"fast\""]).await?, 10.0);
    env.is_empty("garenne.dead").await
}

#[tokio::test]
async fn tasks_of_a_worker_that_a_task_aborts_are_requeued() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("victim")?.stdout().lane("fast:prefetch=10,concurrency=2..2");
    let victim = plan.start().await?;
    env.publish("bench.noop", &json!({}), "first", 1).await?;
    victim.until_done(1).await?;
    env.until_lane("fast", 0, 0).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "running", 1).await?;
    victim.until_holds("fast", 1, 0).await?;
    env.publish("bench.abort", &json!({}), "aborting", 1).await?;
    let waiting = env.publish("bench.noop", &json!({}), "waiting", 5).await?;
    let done = victim.crashed().await?;
    assert_eq!(done.iter().map(|done| done.task_id.as_str()).collect::<Vec<_>>(), ["first-0"]);

    // The test takes all of them from the queue, so that the aborting task does not run again.
    let taken = env.take_all("garenne.tasks.fast", 7).await?;
    let mut ids: Vec<_> = taken.iter().map(|taken| taken.id().to_owned()).collect();
    ids.retain(|id| id != "aborting-0" && id != "running-0");
    ids.sort();
    assert_eq!(ids, waiting);
    Ok(())
}
