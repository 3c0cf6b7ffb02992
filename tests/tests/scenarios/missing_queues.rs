//! A queue for copies of tasks is deleted while a worker runs. A worker with the permission declares it again; another
//! one names the missing queue until it exists again.

use anyhow::{Context, Result};
use garenne_protocol::topology::{Arg, Ladder, Names, Queue, Topology};
use garenne_tests::harness::{
    client,
    gateway::GatewayPlan,
    process::Program,
    test_env::{DELAYS, TestEnv},
    users,
    worker::Worker,
};
use lapin::{
    options::{QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable},
};
use serde_json::json;

/// The queues of the retry delays of the test environment's workers.
const RETRY_QUEUES: [&str; 2] = ["garenne.retry.fast.200ms", "garenne.retry.fast.400ms"];
const DEAD: &str = "garenne.dead";

pub(super) async fn delete(env: &TestEnv, queue: &str) -> Result<()> {
    env.vhost().broker().management().delete(&["queues", env.vhost().name(), queue]).await
}

/// Declares the topology as the user `topology`.
pub(super) async fn apply(env: &TestEnv) -> Result<()> {
    let url = users::user(env.vhost(), "topology").await?;
    let tool = Program::garenne(&url, &["topology", "apply"]).env("GARENNE_RETRY__DELAYS", DELAYS);
    tool.succeed().await.map(drop)
}

#[tokio::test]
async fn missing_queues_are_declared_again_by_a_worker_with_the_permission() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker_at("declaring", &env.vhost().amqp_url())?.env("GARENNE_UNKNOWN_KIND_WAIT", "0s");
    let mut worker = plan.stdout().start().await?;
    for queue in RETRY_QUEUES.into_iter().chain([DEAD]) {
        delete(&env, queue).await?;
    }
    env.publish("bench.fail", &json!({"times": 1}), "again", 20).await?;
    env.publish("bench.nothing", &json!({}), "bad", 5).await?;
    let done = worker.until_done(20).await?;
    assert!(done.iter().all(|done| done.attempt == 2), "{done:?}");
    assert_eq!(env.take_all(DEAD, 5).await?.len(), 5);
    worker.until_ready().await?;
    env.until_lane("fast", 0, 0).await?;
    let stopped = worker.stop().await?;
    let receipt = stopped.receipt;
    assert_eq!((receipt.acked, receipt.retried, receipt.dead), (20, 20, 5), "{receipt:?}");
    assert_eq!((stopped.code, receipt.lost_settlements), (0, 0));
    Ok(())
}

#[tokio::test]
async fn missing_queues_are_named_by_a_worker_without_the_permission() -> Result<()> {
    for (queue, kind, payload) in
        [(DEAD, "bench.nothing", json!({})), ("garenne.retry.fast.", "bench.fail", json!({"times": 1}))]
    {
        let env = TestEnv::new().await?;
        let plan = env.worker("limited")?.env("GARENNE_UNKNOWN_KIND_WAIT", "0s");
        let mut worker = plan.stdout().start().await?;
        match queue {
            DEAD => delete(&env, DEAD).await?,
            _ => {
                for queue in RETRY_QUEUES {
                    delete(&env, queue).await?;
                }
            }
        }
        env.publish(kind, &payload, "held", 3).await?;
        worker.until_not_ready_for(queue).await?;
        worker.until_not_ready_for("this user may not create it").await?;
        let shown = worker.metric("garenne_queue_missing", &[queue]).await?;
        assert!(shown >= 1.0, "{shown}");
        // Tasks that need no copy are not affected.
        env.publish("bench.noop", &json!({}), "good", 10).await?;
        for n in 0..10 {
            worker.until_done_with(&format!("good-{n}")).await?;
        }
        apply(&env).await?;
        worker.until_ready().await?;
        worker.until_metric("garenne_queue_missing", &[queue], 0.0).await?;
        env.until_lane("fast", 0, 0).await?;
        if queue == DEAD {
            assert_eq!(env.take_all(DEAD, 3).await?.len(), 3);
        } else {
            worker.until_done(13).await?;
        }
        let stopped = worker.stop().await?;
        let receipt = &stopped.receipt;
        assert_eq!(
            (stopped.code, receipt.dead + receipt.retried, receipt.requeued),
            (0, 3, 0),
            "{receipt:?}"
        );
    }
    Ok(())
}

/// The exchange of results is not a queue for copies, but without it no task is acked either.
#[tokio::test]
async fn missing_exchange_of_results_is_declared_again() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker_at("declaring", &env.vhost().amqp_url())?.option("--sink", "results");
    let mut worker = plan.start().await?;
    let exchange = ["exchanges", env.vhost().name(), "garenne.results"];
    env.vhost().broker().management().delete(&exchange).await?;
    env.publish("bench.noop", &json!({}), "task", 5).await?;
    env.until_settled(5).await?;
    worker.until_ready().await?;
    assert_eq!(worker.stop().await?.receipt.acked, 5);
    Ok(())
}

/// Without its streams a worker knows neither directives nor crashes.
#[tokio::test]
async fn a_deleted_stream_is_named_or_declared_again() -> Result<()> {
    let env = TestEnv::new().await?;
    let mut limited = env.worker("limited")?.start().await?;
    delete(&env, "garenne.directives").await?;
    limited.until_not_ready_for("garenne.directives").await?;
    let mut declaring = env.worker_at("declaring", &env.vhost().amqp_url())?.start().await?;
    limited.until_ready().await?;
    delete(&env, "garenne.lifecycle").await?;
    declaring.until_logged("the stream was deleted").await?;
    limited.until_ready().await?;
    declaring.until_ready().await?;
    limited.stop().await?;
    declaring.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_gateway_whose_exchange_is_gone_is_not_ready_until_tasks_reach_queues_again() -> Result<()> {
    let env = TestEnv::new().await?;
    let mut gateway = GatewayPlan::new(&env)?.start().await?;
    let exchange = ["exchanges", env.vhost().name(), "garenne.tasks"];
    env.vhost().broker().management().delete(&exchange).await?;
    let refused = gateway.post("/v1/tasks/bench.noop", "application/json", "{}").await?;
    assert_eq!(refused.status, 503);
    gateway.until_ready(false).await?;
    apply(&env).await?;
    let again = gateway.post("/v1/tasks/bench.noop", "application/json", "{}").await?;
    assert_eq!(again.status, 202);
    gateway.until_ready(true).await?;
    gateway.stop().await?;
    Ok(())
}

/// Starts a worker that runs one of these tasks and holds the others, then deletes the queue that they came from.
async fn holding_without_a_queue(env: &TestEnv, held: usize) -> Result<Worker> {
    let worker = env.worker("holding")?.stdout().lane("fast:prefetch=20,concurrency=1..1").start().await?;
    // Long enough that it still runs when the worker learns of the deletion.
    env.publish("bench.sleep", &json!({"ms": 12_000}), "first", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    env.publish("bench.noop", &json!({}), "held", held).await?;
    worker.until_holds("fast", 1, held).await?;
    delete(env, "garenne.tasks.fast").await?;
    worker.until_not_ready_for("garenne.tasks.fast").await?;
    worker.until_logged("a queue was deleted").await?;
    Ok(worker)
}

#[tokio::test]
async fn tasks_that_wait_while_their_queue_is_deleted_are_published_to_it_again() -> Result<()> {
    let env = TestEnv::new().await?;
    let mut worker = holding_without_a_queue(&env, 8).await?;
    apply(&env).await?;
    worker.until_ready().await?;
    let mut ids: Vec<_> = worker.until_done(9).await?.into_iter().map(|done| done.task_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 9, "each ran, and none twice");
    worker.until_metric("garenne_orphans_total", &["fast", "published again"], 8.0).await?;
    let receipt = worker.stop().await?.receipt;
    // The settlement of the task that ran could not be sent.
    assert_eq!((receipt.retried, receipt.dead, receipt.lost_settlements), (8, 0, 1), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn tasks_that_wait_for_a_deleted_queue_are_dead_letters_when_their_worker_stops() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = holding_without_a_queue(&env, 4).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.dead, receipt.requeued), (4, 0), "{receipt:?}");
    for letter in env.take_all(DEAD, 4).await? {
        assert_eq!(letter.text("garenne-reason"), "rejected");
        let error = "its queue \"garenne.tasks.fast\" was deleted while a worker held it";
        assert_eq!(letter.text("garenne-error"), error);
    }
    Ok(())
}

/// Deletes a queue of the topology and declares it again before a worker can look it up. Both are sent before the first
/// is answered.
async fn replace(env: &TestEnv, queue: &str) -> Result<()> {
    let version = env.vhost().broker().version().to_string().parse()?;
    let lanes = garenne_common::config::Lanes::default().specs();
    let topology = Topology::new(&Names::new("garenne"), &lanes, &Ladder::default(), version);
    let declared =
        topology.queues.into_iter().find(|it| it.name == queue).context("a queue of the topology")?;
    let deleted = env.client().channel().queue_delete(queue.into(), QueueDeleteOptions::default());
    tokio::try_join!(async { Ok(deleted.await?) }, declare(env, &declared))?;
    Ok(())
}

/// Declares a queue as the test's own client.
pub(super) async fn declare(env: &TestEnv, queue: &Queue) -> Result<()> {
    let mut arguments = FieldTable::default();
    for (name, value) in &queue.arguments {
        let value = match value {
            Arg::Text(text) => client::text(text),
            Arg::Number(number) => AMQPValue::LongLongInt(*number),
        };
        arguments.insert((*name).into(), value);
    }
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    env.client().channel().queue_declare(queue.name.as_str().into(), durable, arguments).await?;
    Ok(())
}

/// No look-up finds the queue missing.
#[tokio::test]
async fn tasks_that_wait_while_their_queue_is_deleted_and_declared_again_at_once_are_done_once() -> Result<()>
{
    let env = TestEnv::new().await?;
    let mut worker =
        env.worker("holding")?.stdout().lane("fast:prefetch=20,concurrency=1..1").start().await?;
    env.publish("bench.sleep", &json!({"ms": 12_000}), "first", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    env.publish("bench.noop", &json!({}), "held", 16).await?;
    worker.until_holds("fast", 1, 16).await?;
    replace(&env, "garenne.tasks.fast").await?;
    // Its binding is gone, too.
    apply(&env).await?;
    let done = worker.until_done(17).await?;
    let ids: std::collections::BTreeSet<_> = done.iter().map(|done| &done.task_id).collect();
    assert_eq!((ids.len(), done.len()), (17, 17), "each ran once");
    worker.until_ready().await?;
    env.until_lane("fast", 0, 0).await?;
    worker.until_metric("garenne_orphans_total", &["fast", "published again"], 16.0).await?;
    let stopped = worker.stop().await?;
    assert_eq!(stopped.done.len(), 17, "none ran twice");
    let receipt = stopped.receipt;
    assert_eq!((receipt.retried, receipt.dead, receipt.lost_settlements), (16, 0, 1), "{receipt:?}");
    env.is_empty(DEAD).await
}
