//! A copy or its confirm is lost in transit. The task is not lost; at most it exists twice under its id.

use std::collections::BTreeSet;

use anyhow::Result;
use garenne_tests::harness::{
    client::{headers, with_id},
    fault_proxy::FaultProxy,
    frame_proxy::{FrameProxy, Method},
    process::Signal,
    test_env::TestEnv,
    worker::WorkerPlan,
};
use serde_json::json;

fn plan(env: &TestEnv, name: &str, url: &str) -> Result<WorkerPlan> {
    let plan = env.worker_through(name, url)?.stdout().lane("fast:prefetch=10,concurrency=2..2");
    Ok(plan.option("--max-attempts", "1"))
}

/// The broker has the copy, but its confirm does not reach the worker. The worker does not ack the original, which is
/// redelivered.
#[tokio::test]
async fn lost_confirm_of_a_dead_letter_loses_no_task() -> Result<()> {
    let env = TestEnv::new().await?;
    let proxy = FrameProxy::for_url(env.worker_url()).await?;
    let worker = plan(&env, "unconfirmed", proxy.url())?.start().await?;
    proxy.cut_at(Method::BASIC_ACK, 1);
    env.publish("bench.sleep", &json!({"ms": "many"}), "invalid", 1).await?;
    proxy.until_refused(1).await?;
    // The copy has arrived, and the original is in the queue again.
    env.until_ready_in("garenne.dead", 1).await?;
    env.until_ready("fast", 1).await?;
    proxy.heal();
    let dead = env.take_all("garenne.dead", 2).await?;
    for letter in &dead {
        assert_eq!((letter.id(), letter.text("garenne-reason").as_str()), ("invalid-0", "invalid-payload"));
        assert_eq!(letter.number("garenne-attempt"), Some(1), "only its own attempt is counted: {letter:?}");
    }
    env.until_lane("fast", 0, 0).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.dead, receipt.lost_settlements), (2, 1, 1), "{receipt:?}");
    Ok(())
}

/// The copy does not arrive. Only the original exists, and it is redelivered.
#[tokio::test]
async fn dead_letter_that_never_arrives_is_published_again() -> Result<()> {
    let env = TestEnv::new().await?;
    let (proxy, url) = FaultProxy::for_url(env.worker_url()).await?;
    let worker = plan(&env, "stalled", &url)?.start().await?;
    // Its dead letter is published when its timeout passes.
    let slow = with_id("slow").with_headers(headers([("garenne-timeout-ms", 8000.into())]));
    env.client().publish("garenne.tasks", "bench.sleep", slow, br#"{"ms":600000}"#).await?;
    worker.until_holds("fast", 1, 0).await?;
    proxy.stall();
    worker.until_holds("fast", 0, 0).await?;
    env.is_empty("garenne.dead").await?;
    proxy.drop_connections();
    proxy.heal();
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("slow", "attempts-exhausted"));
    // The redelivery ends last, also if the letter above is that of the first delivery.
    worker.until_metric("garenne_settlements_total", &["settlement=\"dead\""], 1.0).await?;
    let receipt = worker.stop().await?.receipt;
    // The letter is published again for the redelivery, or for the first delivery if the publisher reconnects before
    // the worker knows that its consumer is gone.
    assert_eq!(receipt.dead + receipt.lost_settlements, receipt.delivered, "{receipt:?}");
    Ok(())
}

/// The same for the copy to the quarantine, after two workers were killed while they ran the task.
#[tokio::test]
async fn lost_confirm_of_a_quarantine_copy_loses_no_task() -> Result<()> {
    let env = TestEnv::new().await?;
    let proxy = FrameProxy::for_url(env.worker_url()).await?;
    let mover = plan(&env, "mover", proxy.url())?.start().await?;
    // It receives nothing while the others are killed.
    mover.signal(Signal::TSTP)?;
    env.until_no_consumer("fast").await?;
    for name in ["first", "second"] {
        let victim = plan(&env, name, env.worker_url())?.start().await?;
        if name == "first" {
            env.publish("bench.sleep", &json!({"ms": 600_000}), "suspect", 1).await?;
        }
        victim.until_holds("fast", 1, 0).await?;
        victim.kill().await?;
        env.until_ready("fast", 1).await?;
    }
    // It also reports the crashes, in the background: the confirm of the copy has no fixed place among the confirms.
    proxy.withhold(Method::BASIC_ACK);
    mover.signal(Signal::CONT)?;
    env.until_queue("garenne.quarantine", 0, 1).await?;
    proxy.cut();
    proxy.until_refused(1).await?;
    env.until_ready_in("garenne.quarantine", 1).await?;
    env.until_ready("fast", 1).await?;
    // The copy has arrived, and the original is in the queue again.
    proxy.heal();
    mover.until_metric("garenne_settlements_total", &["settlement=\"quarantined\""], 1.0).await?;
    // The task runs in the quarantine until it is stopped, which ends both copies.
    mover.until_holds("quarantine", 1, 0).await?;
    env.garenne(&["task", "stop", "suspect-0"]).await?;
    let dead = env.take_all("garenne.dead", 2).await?;
    let ids: BTreeSet<_> = dead.iter().map(|letter| (letter.id(), letter.text("garenne-reason"))).collect();
    assert_eq!(ids, BTreeSet::from([("suspect-0", "stopped".to_owned())]));
    env.until_lane("fast", 0, 0).await?;
    env.until_queue("garenne.quarantine", 0, 0).await?;
    let receipt = mover.stop().await?.receipt;
    // Marking its start in the quarantine is a copy too.
    assert!(receipt.quarantined >= 1, "{receipt:?}");
    assert_eq!(receipt.dead, 2, "{receipt:?}");
    assert!(receipt.lost_settlements >= 1, "{receipt:?}");
    Ok(())
}
