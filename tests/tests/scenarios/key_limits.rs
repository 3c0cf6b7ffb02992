//! One device, or one slow webhook host, does not take the workers of a lane. Its tasks are delayed, and none is lost.

use anyhow::{Result, ensure};
use garenne_tests::harness::{
    client::{headers, text, with_id},
    test_env::TestEnv,
    webhook::Webhook,
    worker::WorkerPlan,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Tasks of the chatty device.
const CHATTY: usize = 12;

/// Four workers and a small prefetch, which one device's tasks would soon exhaust.
fn small(plan: WorkerPlan, lane: &str) -> WorkerPlan {
    plan.stdout().lane(&format!("{lane}:prefetch=8,concurrency=4..4")).env("GARENNE_RETRY__DELAYS", "1s")
}

async fn publish(env: &TestEnv, kind: &str, id: &str, key: &str, payload: Value) -> Result<()> {
    let properties = with_id(id).with_headers(headers([("garenne-key", text(key))]));
    env.client().publish("garenne.tasks", kind, properties, payload.to_string().as_bytes()).await?;
    Ok(())
}

/// A worker whose devices may each take two of its four workers, half of the prefetch.
fn limited(env: &TestEnv) -> Result<WorkerPlan> {
    Ok(small(env.worker("w")?, "fast").env("GARENNE_LANES__FAST__MAX_PER_KEY", "2"))
}

async fn publish_chatty(env: &TestEnv, ms: u64) -> Result<()> {
    for n in 0..CHATTY {
        publish(env, "bench.sleep", &format!("chatty-{n}"), "pump", json!({"ms": ms})).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_chatty_device_takes_its_share_of_workers_and_prefetch() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = limited(&env)?.start().await?;
    publish_chatty(&env, 600_000).await?;
    // Two run, and two wait: half of the prefetch. The others wait on the broker.
    worker.until_holds("fast", 2, 2).await?;
    for n in 0..6 {
        publish(&env, "bench.noop", &format!("quiet-{n}"), &format!("device-{n}"), json!({})).await?;
    }
    let done = worker.until_done(6).await?;
    ensure!(done.iter().all(|done| done.task_id.starts_with("quiet-")), "{done:?}");
    worker.kill().await?;
    Ok(())
}

#[tokio::test]
async fn tasks_beyond_the_share_of_their_key_wait_without_an_attempt() -> Result<()> {
    let env = TestEnv::new().await?;
    small(env.worker("declares")?, "fast").start().await?.stop().await?;
    publish_chatty(&env, 1_000).await?;
    let worker = limited(&env)?.start().await?;
    let done = worker.until_done(CHATTY).await?;
    ensure!(done.iter().all(|done| done.attempt == 1), "no attempt was spent: {done:?}");
    let receipt = worker.stop().await?.receipt;
    ensure!((receipt.acked, receipt.dead) == (CHATTY as u64, 0) && receipt.retried > 0, "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn alerts_to_a_slow_host_leave_workers_for_other_hosts() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = small(env.worker("w")?, "slow")
        .env("GARENNE_ALERT__PAYLOAD_URLS__HOSTS", "127.0.0.1")
        .env("GARENNE_ALERT__PAYLOAD_URLS__NETWORKS", "127.0.0.0/8")
        .env("GARENNE_ALERT__TIMEOUT", "60s");
    let worker = plan.start().await?;
    // Accepts connections and never answers.
    let slow = TcpListener::bind("127.0.0.1:0").await?;
    let slow_url = format!("http://{}/hook", slow.local_addr()?);
    for n in 0..CHATTY {
        env.publish("alert.notify", &json!({"url": slow_url}), &format!("slow-{n}"), 1).await?;
    }
    let _request = slow.accept().await?;
    worker.until_holds("slow", 2, 2).await?;
    let fast = Webhook::start([]).await?;
    env.publish("alert.notify", &json!({"url": fast.url()}), "fast", 5).await?;
    fast.until_alerts(5).await?;
    let held = worker.kill().await?;
    ensure!(held.iter().all(|done| done.task_id.starts_with("fast-")), "{held:?}");
    Ok(())
}
