//! Follow-up tasks: a parent is acked only after its follow-ups are confirmed, and a repeated parent publishes them
//! under the same ids.

use std::{collections::BTreeSet, time::Instant};

use anyhow::{Result, ensure};
use garenne_tests::harness::{client::with_id, test_env::TestEnv};
use lapin::options::QueueDeleteOptions;
use serde_json::{Value, json};

/// The only lane of the worker; follow-ups go to the other one and stay in its queue.
const FAST: &str = "fast:prefetch=10,concurrency=2..2";
const FOLLOW_UPS: &str = "garenne.tasks.slow";

fn three(fail_times: u32) -> Value {
    json!({"kind": "spectrum.later", "payload": {"n": 1}, "count": 3, "fail_times": fail_times})
}

async fn publish_parent(env: &TestEnv, id: &str, task: &Value) -> Result<()> {
    let body = task.to_string();
    env.client().publish("garenne.tasks", "bench.follow", with_id(id), body.as_bytes()).await
}

#[tokio::test]
async fn follow_ups_have_the_same_ids_however_often_their_parent_runs() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("parent")?.stdout().lane(FAST).start().await?;
    // The attempt that fails publishes none, the one after it all three.
    publish_parent(&env, "p", &three(1)).await?;
    worker.until_done_with("p").await?;
    let first = env.take_all(FOLLOW_UPS, 3).await?;
    for task in &first {
        assert_eq!((task.text("garenne-parent").as_str(), task.number("garenne-depth")), ("p", Some(1)));
        assert_eq!(task.properties.kind().as_ref().unwrap().as_str(), "spectrum.later");
        assert_eq!(task.body, br#"{"n":1}"#);
    }
    let ids = |tasks: &[garenne_tests::harness::client::Taken]| {
        tasks.iter().map(|task| task.id().to_owned()).collect::<BTreeSet<_>>()
    };
    assert_eq!(ids(&first).len(), 3);
    // The same parent again publishes the same tasks.
    publish_parent(&env, "p", &three(0)).await?;
    assert_eq!(ids(&env.take_all(FOLLOW_UPS, 3).await?), ids(&first));
    // A parent whose attempts are exhausted publishes none.
    publish_parent(&env, "q", &three(99)).await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("q", "attempts-exhausted"));
    env.is_empty(FOLLOW_UPS).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (2, 1), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn a_cycle_of_follow_ups_ends_at_the_maximum_depth() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("w")?.stdout().start().await?;
    publish_parent(&env, "first", &json!({"kind": "bench.follow"})).await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.text("garenne-reason").as_str(), dead.number("garenne-depth")), ("rejected", Some(8)));
    let error = "follow-up \"bench.follow\": its depth would be 9, the maximum is 8";
    assert_eq!(dead.text("garenne-error"), error);
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.dead), (9, 8, 1), "{receipt:?}");
    Ok(())
}

/// A parent whose follow-ups cannot be published stays unacked. A stop requeues it, and the next worker publishes
/// them.
#[tokio::test]
async fn a_parent_is_acked_after_its_follow_ups_are_confirmed() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("waiting")?.stdout().lane(FAST).option("--shutdown-timeout", "1s");
    let worker = plan.start().await?;
    let options = QueueDeleteOptions::default();
    env.client().channel().queue_delete(FOLLOW_UPS.into(), options).await?;
    publish_parent(&env, "p", &three(0)).await?;
    worker.until_logged("not confirmed").await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.requeued), (1, 0, 1), "{receipt:?}");

    // A worker may not declare queues; the operator declares the missing one again.
    assert_eq!(env.garenne(&["topology", "apply"]).await?.code, Some(0));
    let second = env.worker("second")?.stdout().lane(FAST).start().await?;
    second.until_done_with("p").await?;
    env.take_all(FOLLOW_UPS, 3).await?;
    assert_eq!(second.stop().await?.receipt.acked, 1);
    Ok(())
}

/// As many follow-ups as a task may have. They are published in windows, so the worker needs memory for the tasks and not for
/// all messages.
#[tokio::test]
async fn a_task_publishes_100_000_follow_ups_before_its_ack() -> Result<()> {
    const COUNT: usize = 100_000;
    let env = TestEnv::new().await?;
    let worker = env.worker("parent")?.stdout().lane(FAST).start().await?;
    publish_parent(&env, "small", &three(0)).await?;
    env.until_ready_in(FOLLOW_UPS, 3).await?;
    let before = worker.process().peak_memory()?;
    let began = Instant::now();
    let task = json!({"kind": "spectrum.later", "payload": {"n": 1}, "count": COUNT});
    publish_parent(&env, "p", &task).await?;
    env.until_ready_in(FOLLOW_UPS, 3 + COUNT).await?;
    let (took, more) = (began.elapsed(), (worker.process().peak_memory()? - before) >> 20);
    println!("{COUNT} follow-ups took {took:.1?} and {more} MiB of memory");
    ensure!(more < 128, "{more} MiB");
    let receipt = worker.stop().await?.receipt;
    ensure!((receipt.delivered, receipt.acked) == (2, 2), "{receipt:?}");
    Ok(())
}
