//! The lane `default`: tasks whose kind no lane's bindings match.

use anyhow::{Result, ensure};
use garenne_common::shutdown::Receipt;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    process::Signal,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use lapin::BasicProperties;

const KIND: &str = "image.resize";
const BODY: &[u8] = br#"{"ms":1}"#;

async fn publish(env: &TestEnv, kind: &str, count: usize) -> Result<()> {
    for n in 0..count {
        let properties = BasicProperties::default().with_message_id(format!("{kind}-{n}").into());
        env.client().publish("garenne.tasks", kind, properties, BODY).await?;
    }
    Ok(())
}

/// Waits until this number of workers consume the lane.
async fn until_consumers(env: &TestEnv, count: usize) -> Result<()> {
    eventually(format!("{count} consumers of the lane"), async || {
        let consumers = env.client().consumers("garenne.tasks.default").await?;
        Ok(Seen::when(consumers == count, consumers))
    })
    .await
}

#[tokio::test]
async fn a_kind_without_a_binding_runs_on_the_workers_that_have_its_handler() -> Result<()> {
    let env = TestEnv::new().await?;
    let stock = env.worker("stock")?.stdout().start().await?;
    let other = env.worker_of_kinds("other", &["mail.send"])?.stdout().start().await?;
    let resizer = env.worker_of_kinds("resizer", &[KIND])?.stdout().start().await?;
    until_consumers(&env, 2).await?;
    publish(&env, KIND, 200).await?;
    publish(&env, "mail.send", 200).await?;
    // A worker without the handler passes the task on.
    resizer.until_done(200).await?;
    other.until_done(200).await?;
    env.until_lane("default", 0, 0).await?;
    let receipt = stock.stop().await?.receipt;
    ensure!(receipt.delivered == 0, "the stock worker leaves the lane to the others: {receipt:?}");
    env.is_empty("garenne.dead").await
}

#[tokio::test]
async fn a_kind_that_no_worker_has_becomes_a_dead_letter() -> Result<()> {
    let env = TestEnv::new().await?;
    let stock = env.worker("stock")?.env("GARENNE_UNKNOWN_KIND_WAIT", "0s").start().await?;
    publish(&env, KIND, 3).await?;
    for letter in env.take_all("garenne.dead", 3).await? {
        assert_eq!(letter.text("garenne-reason"), "unknown-kind");
        assert_eq!(letter.text("garenne-error"), format!("no handler for kind {KIND:?} on any worker"));
    }
    assert_eq!(stock.stop().await?.receipt.dead, 3);
    Ok(())
}

#[tokio::test]
async fn the_stock_worker_takes_the_lane_back_when_the_last_other_worker_stops_or_crashes() -> Result<()> {
    let env = TestEnv::new().await?;
    let stock = env.worker("stock")?.env("GARENNE_UNKNOWN_KIND_WAIT", "0s").start().await?;
    for (round, crashes) in [false, true].into_iter().enumerate() {
        let resizer = env.worker_of_kinds(&format!("resizer-{round}"), &[KIND])?.stdout().start().await?;
        until_consumers(&env, 1).await?;
        if crashes {
            resizer.kill().await?;
        } else {
            publish(&env, KIND, 20).await?;
            resizer.until_done(20).await?;
            resizer.stop().await?;
        }
        publish(&env, KIND, 1).await?;
        let letter = env.take_all("garenne.dead", 1).await?.remove(0);
        assert_eq!(letter.text("garenne-reason"), "unknown-kind", "round {round}");
    }
    stock.stop().await?;
    Ok(())
}

/// A worker asks the fleet for a handler before it settles such a task. It must not wait for the answer when it stops.
#[tokio::test]
async fn a_worker_that_cannot_ask_the_fleet_stops_and_hands_the_tasks_back() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let worker = env.worker("blocked")?.start().await?;
    until_consumers(&env, 1).await?;
    worker.signal(Signal::TSTP)?;
    until_consumers(&env, 0).await?;
    publish(&env, KIND, 3).await?;
    broker.set_memory_alarm(true).await?;
    worker.until_metric("garenne_connection_blocked", &[], 1.0).await?;
    worker.signal(Signal::CONT)?;
    env.until_lane("default", 0, 3).await?;
    let stopped = worker.stop().await?;
    let Receipt { delivered, requeued, escalated, .. } = stopped.receipt;
    assert_eq!((stopped.code, delivered, requeued, escalated), (0, 3, 3, false), "{:?}", stopped.receipt);
    broker.set_memory_alarm(false).await?;
    env.until_lane("default", 3, 0).await
}

/// Without a catch-all lane, unroutable tasks are kept in a queue for the operator.
#[tokio::test]
async fn without_a_catch_all_lane_unroutable_tasks_are_kept() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("any")?.env("GARENNE_LANES__DEFAULT__CATCH_ALL", "false").start().await?;
    publish(&env, KIND, 1).await?;
    let kept = env.take_all("garenne.unroutable", 1).await?.remove(0);
    assert_eq!((kept.routing_key.as_str(), kept.body.as_slice()), (KIND, BODY));
    assert_eq!(worker.stop().await?.receipt.delivered, 0);
    Ok(())
}
