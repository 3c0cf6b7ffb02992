//! Mode soft-timeout, the default: soft until the timeout, then hard.

use anyhow::Result;
use garenne_tests::harness::test_env::TestEnv;
use serde_json::json;

#[tokio::test]
async fn shutdown_soft_timeout_stays_soft_if_running_tasks_end_in_time() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("patient")?.stdout().lane("fast:prefetch=10,concurrency=1..1").start().await?;
    env.publish("bench.sleep", &json!({"ms": 10_000}), "running", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    env.publish("bench.noop", &json!({}), "waiting", 4).await?;
    worker.until_holds("fast", 1, 4).await?;

    let stopped = worker.stop().await?;
    assert_eq!(stopped.code, 0);
    assert_eq!((stopped.receipt.mode.as_str(), stopped.receipt.escalated), ("soft-timeout", false));
    assert_eq!((stopped.receipt.acked, stopped.receipt.requeued), (1, 4));
    env.until_lane("fast", 4, 0).await
}

#[tokio::test]
async fn shutdown_soft_timeout_escalates_to_hard() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("impatient")?.stdout().lane("fast:prefetch=10,concurrency=2..2");
    let plan = plan.option("--shutdown-mode", "soft-timeout").option("--shutdown-timeout", "1s");
    let worker = plan.start().await?;
    env.publish("bench.sleep", &json!({"ms": 20_000}), "running", 1).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "endless", 1).await?;
    worker.until_holds("fast", 2, 0).await?;
    env.publish("bench.noop", &json!({}), "waiting", 3).await?;
    worker.until_holds("fast", 2, 3).await?;

    let stopped = worker.stop().await?;
    assert_eq!(stopped.code, 0);
    assert!(stopped.receipt.escalated, "{:?}", stopped.receipt);
    assert!(stopped.receipt.seconds >= 1.0, "{:?}", stopped.receipt);
    assert_eq!((stopped.receipt.acked, stopped.receipt.requeued), (0, 5));
    env.until_lane("fast", 5, 0).await
}
