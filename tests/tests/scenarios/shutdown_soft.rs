//! Mode soft: running tasks are finished, and locally waiting tasks are requeued without spending an attempt.

use std::collections::BTreeSet;

use anyhow::Result;
use garenne_tests::harness::{process::Signal, test_env::TestEnv};
use serde_json::json;

#[tokio::test]
async fn shutdown_soft_requeues_waiting_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("soft")?.option("--shutdown-mode", "soft");
    let worker = env.start_holding(plan, (2, 15_000), 8).await?;
    env.publish("bench.noop", &json!({}), "elsewhere", 5).await?;

    let stopped = worker.stop().await?;
    assert_eq!((stopped.code, stopped.receipt.mode.as_str(), stopped.receipt.escalated), (0, "soft", false));
    assert_eq!((stopped.receipt.delivered, stopped.receipt.acked, stopped.receipt.requeued), (10, 2, 8));
    let done: BTreeSet<_> = stopped.ids().into_iter().collect();
    assert_eq!(done, ["running-0", "running-1"].into());
    env.until_lane("fast", 13, 0).await?;

    let other = env.worker("other")?.stdout().start().await?;
    let done = other.until_done(13).await?;
    assert!(done.iter().all(|done| done.attempt == 1), "a requeue was counted as an attempt: {done:?}");
    let ids: BTreeSet<_> = done.iter().map(|done| done.task_id.as_str()).collect();
    assert_eq!(ids.len(), 13);
    assert!(ids.iter().all(|id| !id.starts_with("running")), "an acked task was redelivered: {ids:?}");
    env.until_lane("fast", 0, 0).await?;
    env.is_empty("garenne.dead").await
}

/// Another worker runs the requeued tasks while the stopping worker's task still runs.
#[tokio::test]
async fn shutdown_soft_requeues_waiting_tasks_while_one_still_runs() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("soft")?.option("--shutdown-mode", "soft");
    let worker = env.start_holding(plan, (1, 600_000), 19).await?;
    let other = env.worker("other")?.stdout().start().await?;
    worker.signal(Signal::TERM)?;
    other.until_done(19).await?;
    worker.until_holds("fast", 1, 0).await?;
    // The running task is endless; a second signal ends the test.
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.escalated, receipt.acked, receipt.requeued), (true, 0, 20), "{receipt:?}");
    assert_eq!(other.done()?.len(), 19);
    Ok(())
}

/// The receipt agrees with the counts of the broker's queues.
#[tokio::test]
async fn receipt_agrees_with_the_broker() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("counted")?.stdout().lane("fast:prefetch=50,concurrency=2..2");
    // With this delay, copies stay in the retry queue and can be counted.
    let plan = plan.option("--shutdown-mode", "soft").env("GARENNE_RETRY__DELAYS", "1h");
    let worker = plan.start().await?;
    env.publish("bench.fail", &json!({"times": 9}), "failing", 5).await?;
    env.publish("bench.sleep", &json!({"ms": "soon"}), "invalid", 5).await?;
    env.publish("bench.sleep", &json!({"ms": 5}), "quick", 300).await?;
    worker.until_done(150).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.retried, receipt.dead), (5, 5), "{receipt:?}");
    assert_eq!(receipt.lost_settlements + receipt.abandoned + receipt.quarantined, 0, "{receipt:?}");
    env.check_receipt(&receipt, 310).await
}
