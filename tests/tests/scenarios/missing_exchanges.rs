//! An exchange of heartbeats or commands is deleted while workers and a gateway run. A worker with the permission declares it
//! again, another one names it, and no program stops its work.

use anyhow::Result;
use garenne_tests::harness::{
    dashboard::Dashboard,
    gateway::GatewayPlan,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::{Worker, WorkerPlan},
};
use serde_json::{Value, json};

use super::{
    heartbeats::{listen, until_beat},
    missing_queues::{apply, delete},
};

pub(super) async fn delete_exchange(env: &TestEnv, exchange: &str) -> Result<()> {
    env.vhost().broker().management().delete(&["exchanges", env.vhost().name(), exchange]).await
}

/// With frequent heartbeats, and so frequent checks of bindings.
fn often(plan: WorkerPlan) -> WorkerPlan {
    plan.env("GARENNE_EVENTS__HEARTBEAT", "100ms")
}

/// A worker that may declare the topology, and one that may not.
async fn workers(env: &TestEnv) -> Result<[Worker; 2]> {
    let declaring = often(env.worker_at("declaring", &env.vhost().amqp_url())?).start().await?;
    let limited = often(env.worker("limited")?).start().await?;
    Ok([declaring, limited])
}

/// Tells a worker to take no tasks, and waits until it is quiet.
async fn until_obeys(env: &TestEnv, worker: &str) -> Result<()> {
    eventually(format!("a command reaches the worker {worker}"), async || {
        env.garenne(&["quiet", worker]).await?;
        Ok(Seen::Wanted(()))
    })
    .await?;
    let mut beats = listen(env).await?;
    let is_quiet = garenne_protocol::heartbeat::Stance::Quiet;
    until_beat(&mut beats, |beat| beat.id == worker && beat.stance == is_quiet).await.map(drop)
}

#[tokio::test]
async fn a_deleted_exchange_of_heartbeats_is_declared_again_and_costs_no_readiness() -> Result<()> {
    let env = TestEnv::new().await?;
    let [mut declaring, mut limited] = workers(&env).await?;
    let dashboard = Dashboard::start(&env).await?;
    delete_exchange(&env, "garenne.events").await?;
    declaring.until_logged("the exchange of heartbeats was missing and is declared again").await?;
    declaring.until_ready().await?;
    limited.until_ready().await?;
    let mut beats = listen(&env).await?;
    for worker in ["declaring", "limited"] {
        until_beat(&mut beats, |beat| beat.id == worker).await?;
    }
    // What is told after the exchange was deleted reaches a dashboard that was started before.
    env.garenne(&["quiet", "limited"]).await?;
    let is_quiet = |now: &Value| {
        now["workers"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|it| it["id"] == "limited" && it["state"] == "quiet")
    };
    dashboard.until("the quiet worker", is_quiet).await?;
    declaring.stop().await?;
    limited.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_missing_exchange_of_heartbeats_is_named_until_an_operator_declares_it() -> Result<()> {
    let env = TestEnv::new().await?;
    let mut limited = often(env.worker("limited")?).stdout().start().await?;
    let mut gateway = GatewayPlan::new(&env)?.env("GARENNE_EVENTS__HEARTBEAT", "100ms").start().await?;
    delete_exchange(&env, "garenne.events").await?;
    let named = |lines: &[String]| lines.iter().find(|line| line.contains("heartbeats refused")).cloned();
    let by_gateway = gateway.process().stderr().until("the broker's refusal", named).await?;
    for line in [limited.until_logged("heartbeats refused").await?, by_gateway] {
        assert!(line.contains("garenne.events") && line.contains("is missing"), "{line}");
        assert!(line.contains("garenne topology apply") && !line.contains("write permission"), "{line}");
    }
    // No task and no request needs heartbeats.
    for _ in 0..20 {
        let accepted = gateway.post("/v1/tasks/bench.noop", "application/json", "{}").await?;
        assert_eq!(accepted.status, 202);
    }
    gateway.until_ready(true).await?;
    limited.until_done(20).await?;
    limited.until_ready().await?;
    apply(&env).await?;
    let mut beats = listen(&env).await?;
    until_beat(&mut beats, |beat| beat.id == "limited").await?;
    until_beat(&mut beats, |beat| beat.id != "limited").await?;
    limited.stop().await?;
    gateway.stop().await?;
    Ok(())
}

#[tokio::test]
async fn commands_reach_workers_again_after_their_exchange_was_deleted() -> Result<()> {
    let env = TestEnv::new().await?;
    let [mut declaring, limited] = workers(&env).await?;
    delete_exchange(&env, "garenne.control").await?;
    declaring.until_logged("the exchange of commands was missing and is declared again").await?;
    declaring.until_ready().await?;
    for worker in ["declaring", "limited"] {
        until_obeys(&env, worker).await?;
    }
    declaring.stop().await?;
    limited.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_missing_exchange_of_commands_is_named_until_an_operator_declares_it() -> Result<()> {
    let env = TestEnv::new().await?;
    let mut limited = often(env.worker("limited")?).stdout().start().await?;
    delete_exchange(&env, "garenne.control").await?;
    let line = limited.until_logged("no command reaches this worker").await?;
    assert!(line.contains("garenne.control") && line.contains("garenne topology apply"), "{line}");
    env.publish("bench.noop", &json!({}), "task", 5).await?;
    limited.until_done(5).await?;
    limited.until_ready().await?;
    apply(&env).await?;
    until_obeys(&env, "limited").await?;
    limited.stop().await?;
    Ok(())
}

/// Nothing consumes the queue, and the broker confirms what it drops without it.
#[tokio::test]
async fn a_deleted_queue_or_exchange_of_unroutable_messages_is_declared_again_or_named() -> Result<()> {
    let env = TestEnv::new().await?;
    let strict = |plan: WorkerPlan| often(plan).env("GARENNE_LANES__DEFAULT__CATCH_ALL", "false");
    let mut limited = strict(env.worker("limited")?).start().await?;
    delete(&env, "garenne.unroutable").await?;
    limited.until_logged("a queue is missing").await?;
    limited.until_not_ready_for("queue \"garenne.unroutable\" is missing").await?;
    let declaring = env.worker_at("declaring", &env.vhost().amqp_url())?;
    let declaring = strict(declaring).start().await?;
    limited.until_ready().await?;
    delete_exchange(&env, "garenne.unroutable").await?;
    declaring.until_logged("was missing and is declared again").await?;
    env.publish("email.send", &json!({}), "kept", 3).await?;
    env.until_ready_in("garenne.unroutable", 3).await?;
    declaring.stop().await?;
    limited.stop().await?;
    Ok(())
}
