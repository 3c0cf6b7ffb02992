//! Tasks that start tasks: nothing is acked that has not started what it should, and nothing starts
//! twice under two names.

use std::collections::BTreeSet;

use anyhow::Result;
use garenne_tests::harness::{client::with_id, test_env::TestEnv};
use lapin::options::QueueDeleteOptions;
use serde_json::{Value, json};

/// Follow-ups nobody takes: this worker works on the other lane.
const FAST: &str = "fast:prefetch=10,concurrency=2..2";
const FOLLOWED: &str = "garenne.tasks.slow";

fn three(fail_times: u32) -> Value {
    json!({"kind": "spectrum.later", "payload": {"n": 1}, "count": 3, "fail_times": fail_times})
}

async fn follow(env: &TestEnv, id: &str, task: &Value) -> Result<()> {
    let body = task.to_string();
    env.client().publish("garenne.tasks", "bench.follow", with_id(id), body.as_bytes()).await
}

#[tokio::test]
async fn follow_ups_start_once_whatever_becomes_of_their_parent() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("parent")?.stdout().lane(FAST).start().await?;
    // The attempt that fails starts nothing, the one after it all three.
    follow(&env, "p", &three(1)).await?;
    worker.until_done_with("p").await?;
    let first = env.take_all(FOLLOWED, 3).await?;
    for task in &first {
        assert_eq!((task.text("garenne-parent").as_str(), task.number("garenne-depth")), ("p", Some(1)));
        assert_eq!(task.properties.kind().as_ref().unwrap().as_str(), "spectrum.later");
        assert_eq!(task.body, br#"{"n":1}"#);
    }
    let ids = |tasks: &[garenne_tests::harness::client::Taken]| {
        tasks.iter().map(|task| task.id().to_owned()).collect::<BTreeSet<_>>()
    };
    assert_eq!(ids(&first).len(), 3);
    // Published again, it starts the same tasks.
    follow(&env, "p", &three(0)).await?;
    assert_eq!(ids(&env.take_all(FOLLOWED, 3).await?), ids(&first));
    // One that fails for good starts none.
    follow(&env, "q", &three(99)).await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("q", "attempts-exhausted"));
    env.is_empty(FOLLOWED).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (2, 1), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn tasks_that_start_each_other_in_a_circle_come_to_an_end() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("circle")?.stdout().start().await?;
    follow(&env, "first", &json!({"kind": "bench.follow"})).await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.text("garenne-reason").as_str(), dead.number("garenne-depth")), ("rejected", Some(8)));
    let error = "follow-up \"bench.follow\": its depth would be 9, the maximum is 8";
    assert_eq!(dead.text("garenne-error"), error);
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.dead), (9, 8, 1), "{receipt:?}");
    Ok(())
}

/// A parent whose follow-ups the broker does not take is not done: it stays unacked, goes back at the
/// stop, and starts them where they can be started.
#[tokio::test]
async fn a_parent_waits_for_its_follow_ups() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("waiting")?.stdout().lane(FAST).option("--shutdown-timeout", "1s");
    let worker = plan.start().await?;
    let gone = QueueDeleteOptions::default();
    env.client().channel().queue_delete(FOLLOWED.into(), gone).await?;
    follow(&env, "p", &three(0)).await?;
    worker.until_logged("not confirmed").await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.requeued), (1, 0, 1), "{receipt:?}");

    // A worker may not make queues; who may puts the missing one back.
    assert_eq!(env.garenne(&["topology", "apply"]).await?.code, Some(0));
    let heir = env.worker("heir")?.stdout().lane(FAST).start().await?;
    heir.until_done_with("p").await?;
    env.take_all(FOLLOWED, 3).await?;
    assert_eq!(heir.stop().await?.receipt.acked, 1);
    Ok(())
}
