//! The broker's consumer timeout: a task that runs longer is done once, and tasks that wait in a worker are requeued
//! before the timeout passes.

use std::time::Duration;

use anyhow::Result;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    client::with_id,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;

/// A broker with a consumer timeout of three seconds that it checks twice a second.
async fn broker_with_short_timeout() -> Result<Broker> {
    let conf = vec!["consumer_timeout = 3000".to_owned()];
    let parameters = vec!["{channel_tick_interval, 500}".to_owned()];
    Broker::start(BrokerOptions { conf, parameters, ..BrokerOptions::default() }).await
}

/// The worker does not know the timeout. While the task runs, the broker requeues its delivery and delivers the
/// message again, possibly several times. The new delivery takes the place of the lost one.
#[tokio::test]
async fn task_longer_than_the_consumer_timeout_is_done_once() -> Result<()> {
    let broker = broker_with_short_timeout().await?;
    let env = TestEnv::on(&broker).await?;
    let worker = env.worker("slow")?.stdout().lane("fast:prefetch=10,concurrency=4..4").start().await?;
    env.publish("bench.sleep", &json!({"ms": 9000}), "long", 3).await?;
    env.publish("bench.spin", &json!({"ms": 9000}), "busy", 1).await?;
    env.publish("bench.sleep", &json!({"ms": 1}), "short", 20).await?;
    let redelivered = async || worker.metric("garenne_redeliveries_total", &["lane=\"fast\""]).await;
    eventually("the broker's timeout has passed for four tasks", async || {
        let redelivered = redelivered().await?;
        Ok(Seen::when(redelivered >= 4.0, redelivered))
    })
    .await?;
    worker.until_done(24).await?;
    env.until_lane("fast", 0, 0).await?;
    println!("RabbitMQ {}: {} redeliveries", broker.version(), redelivered().await?);
    let stopped = worker.stop().await?;
    let mut ids = stopped.ids();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), stopped.done.len()), (24, 24), "a task ran twice");
    assert!(stopped.done.iter().all(|done| done.attempt == 1), "{:?}", stopped.done);
    assert_eq!((stopped.code, stopped.receipt.dead, stopped.receipt.retried), (0, 0, 0));
    env.is_empty("garenne.quarantine").await
}

/// If the lane's timeout is configured, the worker requeues tasks that wait behind long ones in time, and the
/// broker's timeout never passes.
#[tokio::test]
async fn waiting_tasks_are_requeued_before_the_consumer_timeout() -> Result<()> {
    let env = TestEnv::new().await?;
    // One task runs until the end of the test; the rest of the prefetch waits behind it.
    let plan = env.worker("stuck")?.stdout().lane("fast:prefetch=10,concurrency=1..1");
    let plan = plan
        .env("GARENNE_LANES__FAST__BINDINGS", "reading.#")
        .env("GARENNE_LANES__FAST__CONSUMER_TIMEOUT", "7s");
    let worker = plan.start().await?;
    // Published to the queue directly. The lane is bound to short kinds only, so its budget allows tasks to wait.
    let publish = async |id: &str, ms: u64| {
        let properties = with_id(id).with_type("bench.sleep".into());
        let body = json!({ "ms": ms }).to_string();
        env.client().publish("", "garenne.tasks.fast", properties, body.as_bytes()).await
    };
    publish("long", 600_000).await?;
    worker.until_holds("fast", 1, 0).await?;
    for n in 0..9 {
        publish(&format!("waiting-{n}"), 1).await?;
    }
    worker.until_holds("fast", 1, 9).await?;
    let held = std::time::Instant::now();
    let line = worker.until_logged("requeued tasks that waited too long").await?;
    let waited = held.elapsed();
    assert!(waited < Duration::from_secs(60), "the broker's timeout passed first: {waited:?}, {line}");
    let reconnects = worker.find_metric("garenne_reconnects_total", &["role=\"consume\""]).await?;
    assert_eq!(reconnects.unwrap_or_default(), 0.0, "the broker's timeout passed first: {line}");
    // Another worker runs them while the first one is still busy.
    let other = env.worker("free")?.stdout().env("GARENNE_LANES__FAST__BINDINGS", "reading.#");
    let other = other.env("GARENNE_LANES__FAST__CONSUMER_TIMEOUT", "7s").start().await?;
    let done = other.until_done(9).await?;
    assert!(done.iter().all(|done| done.attempt == 1 && done.task_id.starts_with("waiting")), "{done:?}");
    drop(other);
    let line = line.contains("\"max_wait\":\"3s\"");
    assert!(line, "expected 7s less the time of a sweep and of a settlement");
    Ok(())
}
