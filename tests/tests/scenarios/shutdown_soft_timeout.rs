//! Mode soft-timeout, the default: soft until the timeout, then hard.

use anyhow::Result;
use garenne_tests::harness::test_env::TestEnv;

#[tokio::test]
async fn shutdown_soft_timeout_stays_soft_if_running_tasks_end_in_time() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.start_holding(env.worker("patient")?, (1, 10_000), 4).await?;
    let stopped = worker.stop().await?;
    assert_eq!(stopped.code, 0);
    assert_eq!((stopped.receipt.mode.as_str(), stopped.receipt.escalated), ("soft-timeout", false));
    assert_eq!((stopped.receipt.acked, stopped.receipt.requeued), (1, 4));
    env.until_lane("fast", 4, 0).await
}

#[tokio::test]
async fn shutdown_soft_timeout_escalates_to_hard() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("impatient")?.option("--shutdown-mode", "soft-timeout");
    let plan = plan.option("--shutdown-timeout", "1s");
    let worker = env.start_holding(plan, (2, 600_000), 3).await?;
    let stopped = worker.stop().await?;
    assert_eq!(stopped.code, 0);
    assert!(stopped.receipt.escalated, "{:?}", stopped.receipt);
    assert!(stopped.receipt.seconds >= 1.0, "{:?}", stopped.receipt);
    assert_eq!((stopped.receipt.acked, stopped.receipt.requeued), (0, 5));
    env.until_lane("fast", 5, 0).await
}
