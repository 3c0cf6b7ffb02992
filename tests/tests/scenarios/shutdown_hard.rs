//! Hard: long tasks are interrupted, everything goes back, and what does not give up is left.

use anyhow::Result;
use garenne_tests::harness::test_env::TestEnv;
use serde_json::json;

#[tokio::test]
async fn shutdown_hard_interrupts_long_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("hard")?.stdout().lane("fast:prefetch=10,concurrency=2..2");
    // Nothing but the grace could hold up a stop, and a machine would have to be very slow to take as long.
    let worker = plan.option("--shutdown-mode", "hard").option("--hard-grace", "50s").start().await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "running", 2).await?;
    worker.until_holds("fast", 2, 0).await?;
    env.publish("bench.noop", &json!({}), "waiting", 8).await?;
    worker.until_holds("fast", 2, 8).await?;

    let stopped = worker.stop().await?;
    assert_eq!((stopped.code, stopped.receipt.mode.as_str(), stopped.receipt.escalated), (0, "hard", false));
    assert_eq!((stopped.receipt.delivered, stopped.receipt.acked, stopped.receipt.requeued), (10, 0, 10));
    assert!(stopped.receipt.seconds < 50.0, "an obedient task was waited for: {:?}", stopped.receipt);
    assert_eq!(stopped.done, []);
    env.until_lane("fast", 10, 0).await?;

    // No attempt was spent: with one attempt allowed, a failure's first is not its last but one.
    while let Some(taken) = env.client().take("garenne.tasks.fast").await? {
        assert!(!taken.has("garenne-attempt"), "{taken:?}");
    }
    env.is_empty("garenne.dead").await
}

/// A task that ignores its token but awaits can be dropped: it is interrupted after the grace.
#[tokio::test]
async fn shutdown_hard_interrupts_the_deaf_after_the_grace() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("hard")?.stdout().lane("fast:prefetch=10,concurrency=1..1");
    let worker = plan.option("--shutdown-mode", "hard").option("--hard-grace", "500ms").start().await?;
    env.publish("bench.deaf", &json!({"ms": 600_000}), "deaf", 1).await?;
    worker.until_holds("fast", 1, 0).await?;

    let stopped = worker.stop().await?;
    let receipt = &stopped.receipt;
    assert_eq!((stopped.code, receipt.requeued, receipt.abandoned), (0, 1, 0), "{receipt:?}");
    assert!(receipt.seconds >= 0.5, "{receipt:?}");
    env.until_lane("fast", 1, 0).await
}

/// A deaf task that ends within the grace was done.
#[tokio::test]
async fn shutdown_hard_waits_for_the_grace() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("hard")?.stdout().lane("fast:prefetch=10,concurrency=1..1");
    let worker = plan.option("--shutdown-mode", "hard").option("--hard-grace", "20s").start().await?;
    env.publish("bench.spin", &json!({"ms": 2500}), "busy", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.abandoned, receipt.lost_settlements), (1, 0, 0), "{receipt:?}");
    assert!(receipt.seconds < 20.0, "the whole grace was waited for: {receipt:?}");
    Ok(())
}

/// What never gives the processor back is left to the broker: counted, and told by the exit code.
#[tokio::test]
async fn shutdown_hard_abandons_what_is_stuck() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("hard")?.stdout().lane("fast:prefetch=10,concurrency=2..2");
    let worker = plan.option("--shutdown-mode", "hard").option("--hard-grace", "300ms").start().await?;
    env.publish("bench.spin", &json!({"ms": 600_000}), "stuck", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "obedient", 1).await?;
    worker.until_holds("fast", 2, 0).await?;

    // Its end is waited for a tenth as long as the task would take.
    let stopped = worker.stop().await?;
    let receipt = &stopped.receipt;
    assert_eq!((stopped.code, receipt.abandoned, receipt.requeued), (1, 1, 1), "{receipt:?}");
    // Both are with the broker again: one handed back, one because its connection is gone.
    env.until_lane("fast", 2, 0).await
}
