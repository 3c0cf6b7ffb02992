//! A slow confirm does not make the worker publish a copy a second time.

use std::time::Duration;

use anyhow::Result;
use garenne_tests::harness::{
    frame_proxy::{FrameProxy, Method},
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;

/// Longer than the confirm timeout of a publisher that has one (10 s), shorter than two heartbeat intervals, after
/// which the connection ends.
const STALL: Duration = Duration::from_secs(12);
const TASKS: usize = 20;

/// Runs tasks that fail behind a proxy that delays confirms. Each must leave exactly one copy in the queue.
async fn check_copies_in(queue: &str, max_attempts: &str) -> Result<()> {
    let env = TestEnv::new().await?;
    let proxy = FrameProxy::for_url(env.worker_url()).await?;
    let plan = env.worker_through("stalled", proxy.url())?.stdout();
    let plan = plan.env("GARENNE_RETRY__DELAYS", "1h").option("--max-attempts", max_attempts);
    let worker = plan.start().await?;
    let failing = json!({"times": 99});
    env.publish("bench.fail", &failing, "prompt", 1).await?;
    env.until_ready_in(queue, 1).await?;

    proxy.pause_at(Method::BASIC_ACK, STALL);
    env.publish("bench.fail", &failing, "stalled", TASKS).await?;
    eventually("delayed confirms", async || Ok(Seen::when(proxy.pauses() == 1, "none"))).await?;
    env.until_settled(TASKS + 1).await?;
    let reconnects = worker.metric("garenne_reconnects_total", &["role=\"publish\""]).await;
    let receipt = worker.stop().await?.receipt;
    assert_eq!(receipt.dead + receipt.retried, TASKS as u64 + 1, "{receipt:?}");
    env.take_all(queue, TASKS + 1).await?;
    let reconnects = reconnects?;
    assert!(reconnects.abs() < f64::EPSILON, "the connection must survive the delay: {reconnects}");
    Ok(())
}

#[tokio::test]
async fn a_slow_confirm_causes_no_second_dead_letter() -> Result<()> {
    check_copies_in("garenne.dead", "1").await
}

#[tokio::test]
async fn a_slow_confirm_causes_no_second_retry() -> Result<()> {
    check_copies_in("garenne.retry.fast.1h", "2").await
}
