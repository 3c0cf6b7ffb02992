//! Quiet: intake stops and the process keeps running; after resuming, it consumes again.

use anyhow::Result;
use garenne_tests::harness::{process::Signal, test_env::TestEnv};
use serde_json::json;

#[tokio::test]
async fn sigtstp_quiets_and_sigcont_resumes() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.start_holding(env.worker("quiet")?, (1, 10_000), 3).await?;
    let pid = worker.id();
    worker.signal(Signal::TSTP)?;
    env.until_no_consumer("fast").await?;
    // It finishes the tasks that it holds and receives no new ones.
    worker.until_done(4).await?;
    env.publish("bench.noop", &json!({}), "later", 5).await?;
    env.until_lane("fast", 5, 0).await?;
    assert_eq!(worker.get("/livez").await?, "ok\n");

    worker.signal(Signal::CONT)?;
    worker.until_done(9).await?;
    assert_eq!(worker.id(), pid);
    let stopped = worker.stop().await?;
    assert_eq!((stopped.code, stopped.receipt.delivered, stopped.receipt.acked), (0, 9, 9));
    Ok(())
}

#[tokio::test]
async fn quiet_worker_can_be_stopped() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.start_holding(env.worker("quiet")?, (1, 10_000), 0).await?;
    worker.post("/quiet").await?;
    env.until_no_consumer("fast").await?;
    let stopped = worker.stop().await?;
    assert_eq!((stopped.code, stopped.receipt.acked), (0, 1));
    Ok(())
}
