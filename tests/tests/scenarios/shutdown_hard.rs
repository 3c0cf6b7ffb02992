//! Mode hard: running tasks are interrupted, all tasks are requeued, and tasks that do not end are abandoned.

use anyhow::Result;
use garenne_tests::harness::test_env::TestEnv;
use serde_json::json;

#[tokio::test]
async fn shutdown_hard_interrupts_long_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    // The grace period is long, so a stop that takes less time did not wait for it, even on a slow machine.
    let plan = env.worker("hard")?.option("--shutdown-mode", "hard").option("--hard-grace", "50s");
    let worker = env.start_holding(plan, (2, 600_000), 8).await?;

    let stopped = worker.stop().await?;
    assert_eq!((stopped.code, stopped.receipt.mode.as_str(), stopped.receipt.escalated), (0, "hard", false));
    assert_eq!((stopped.receipt.delivered, stopped.receipt.acked, stopped.receipt.requeued), (10, 0, 10));
    assert!(stopped.receipt.seconds < 50.0, "the stop waited for a cancelled task: {:?}", stopped.receipt);
    assert_eq!(stopped.done, []);
    env.until_lane("fast", 10, 0).await?;

    // No attempt was spent.
    while let Some(taken) = env.client().take("garenne.tasks.fast").await? {
        assert!(!taken.has("garenne-attempt"), "{taken:?}");
    }
    env.is_empty("garenne.dead").await
}

/// An async task that ignores its cancellation token is dropped after the grace period.
#[tokio::test]
async fn shutdown_hard_drops_tasks_that_ignore_cancellation_after_the_grace() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("hard")?.stdout().lane("fast:prefetch=10,concurrency=1..1");
    let worker = plan.option("--shutdown-mode", "hard").option("--hard-grace", "500ms").start().await?;
    env.publish("bench.deaf", &json!({"ms": 600_000}), "uncancelled", 1).await?;
    worker.until_holds("fast", 1, 0).await?;

    let stopped = worker.stop().await?;
    let receipt = &stopped.receipt;
    assert_eq!((stopped.code, receipt.requeued, receipt.abandoned), (0, 1, 0), "{receipt:?}");
    assert!(receipt.seconds >= 0.5, "{receipt:?}");
    env.until_lane("fast", 1, 0).await
}

/// A task that ignores cancellation and ends within the grace period is settled.
#[tokio::test]
async fn shutdown_hard_settles_tasks_that_end_within_the_grace() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("hard")?.stdout().lane("fast:prefetch=10,concurrency=1..1");
    let worker = plan.option("--shutdown-mode", "hard").option("--hard-grace", "20s").start().await?;
    env.publish("bench.spin", &json!({"ms": 5_000}), "busy", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.abandoned, receipt.lost_settlements), (1, 0, 0), "{receipt:?}");
    assert!(receipt.seconds < 20.0, "the stop took the whole grace period: {receipt:?}");
    Ok(())
}

/// A task that never yields is abandoned: the receipt counts it, and the exit code is 1.
#[tokio::test]
async fn shutdown_hard_abandons_stuck_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("hard")?.stdout().lane("fast:prefetch=10,concurrency=2..2");
    let worker = plan.option("--shutdown-mode", "hard").option("--hard-grace", "300ms").start().await?;
    env.publish("bench.spin", &json!({"ms": 600_000}), "stuck", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "cancelled", 1).await?;
    worker.until_holds("fast", 2, 0).await?;

    // The stop must end long before the task would.
    let stopped = worker.stop().await?;
    let receipt = &stopped.receipt;
    assert_eq!((stopped.code, receipt.abandoned, receipt.requeued), (1, 1, 1), "{receipt:?}");
    // Both are ready again: one was requeued by the worker, the other by the broker when the connection closed.
    env.until_lane("fast", 2, 0).await
}
