//! A signal or the admin port can escalate a running stop to a harder mode, and never to a softer one.

use anyhow::Result;
use garenne_tests::harness::{
    process::Signal,
    test_env::TestEnv,
    worker::{Stopped, Worker},
};

/// A worker during a light stop, with one endless task running and one task waiting.
async fn stopping(env: &TestEnv) -> Result<Worker> {
    let plan = env.worker("stopping")?.option("--shutdown-mode", "light");
    let worker = env.start_holding(plan, (1, 600_000), 1).await?;
    worker.signal(Signal::TERM)?;
    worker.until_logged("\"message\":\"stopping\"").await?;
    Ok(worker)
}

fn check_escalated_to_hard(stopped: &Stopped) {
    assert_eq!(stopped.code, 0);
    assert!(stopped.receipt.escalated, "{:?}", stopped.receipt);
    assert_eq!((stopped.receipt.acked, stopped.receipt.requeued), (0, 2), "{:?}", stopped.receipt);
}

#[tokio::test]
async fn second_sigterm_escalates_to_hard() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = stopping(&env).await?;
    check_escalated_to_hard(&worker.stop().await?);
    env.until_lane("fast", 2, 0).await
}

#[tokio::test]
async fn sigint_after_sigterm_escalates_to_hard() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = stopping(&env).await?;
    worker.signal(Signal::INT)?;
    check_escalated_to_hard(&worker.stopped().await?);
    env.until_lane("fast", 2, 0).await
}

#[tokio::test]
async fn admin_port_escalates_and_never_softens_a_stop() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = stopping(&env).await?;
    worker.post("/shutdown?mode=soft").await?;
    worker.until_holds("fast", 1, 0).await?;
    worker.post("/shutdown?mode=light").await?;
    worker.post("/shutdown?mode=hard").await?;
    check_escalated_to_hard(&worker.stopped().await?);
    env.until_lane("fast", 2, 0).await
}

#[tokio::test]
async fn sigquit_stops_hard_immediately() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.start_holding(env.worker("quit")?, (1, 600_000), 0).await?;
    worker.signal(Signal::QUIT)?;
    let stopped = worker.stopped().await?;
    assert_eq!((stopped.code, stopped.receipt.requeued), (0, 1), "{:?}", stopped.receipt);
    env.until_lane("fast", 1, 0).await
}

#[tokio::test]
async fn admin_port_stops_in_the_requested_mode() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.start_holding(env.worker("asked")?, (1, 10_000), 3).await?;
    worker.post("/shutdown?mode=light").await?;
    let stopped = worker.stopped().await?;
    assert_eq!((stopped.code, stopped.receipt.mode.as_str(), stopped.receipt.acked), (0, "light", 4));
    Ok(())
}

#[tokio::test]
async fn admin_port_refuses_requests_without_a_valid_token() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("guarded")?.start().await?;
    let url = worker.url("/shutdown?mode=hard");
    let http = reqwest::Client::new();
    assert_eq!(http.post(&url).send().await?.status(), 401);
    assert_eq!(http.post(&url).bearer_auth("guess").send().await?.status(), 401);
    assert_eq!(http.get(&url).send().await?.status(), 405);
    let refused = worker.post("/shutdown?mode=gently").await.unwrap_err();
    assert!(refused.to_string().contains("400"), "{refused}");
    drop(http);
    assert_eq!(worker.stop().await?.code, 0);
    Ok(())
}
