//! Whatever happens to the connection, the worker comes back by itself, with the same prefetch, and no
//! task is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::Result;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    cluster::Cluster,
    fault_proxy::FaultProxy,
    process::{Program, Signal},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::{Done, Worker, WorkerPlan},
};
use serde_json::json;

const PREFETCH: u64 = 20;

fn plan(plan: WorkerPlan) -> WorkerPlan {
    plan.stdout().lane("fast:prefetch=20,concurrency=4..4")
}

/// Waits until every one of these is done.
async fn until_all(worker: &Worker, ids: &[String]) -> Result<Vec<Done>> {
    eventually("every task is done", async || {
        let done = worker.done()?;
        let found: BTreeSet<_> = done.iter().map(|done| done.task_id.as_str()).collect();
        let missing = ids.iter().filter(|id| !found.contains(id.as_str())).count();
        Ok(if missing == 0 { Seen::Wanted(done) } else { Seen::Other(format!("{missing} missing")) })
    })
    .await
}

/// The broker lists one consumer of the lane, with the prefetch that it always had.
async fn prefetch_is_restored(env: &TestEnv) -> Result<()> {
    eventually("one consumer with its prefetch", async || {
        let consumers = env.vhost().view().consumers().await?;
        let lane = consumers.iter().filter(|it| it.queue() == "garenne.tasks.fast");
        let prefetch: Vec<_> = lane.map(|it| it.prefetch).collect();
        Ok(Seen::when(prefetch == [PREFETCH], format_args!("{prefetch:?}")))
    })
    .await
}

/// Stops the worker. A connection that was lost `cuts` times may have taken so many prefetches of acks
/// with it, also such as were on their way: those tasks, and no others, were done twice.
async fn account(worker: Worker, cuts: u64) -> Result<()> {
    let stopped = worker.stop().await?;
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for done in &stopped.done {
        assert_eq!(done.attempt, 1, "a lost connection is no attempt: {done:?}");
        *times.entry(&done.task_id).or_default() += 1;
    }
    let again = stopped.done.len() - times.len();
    assert!(again as u64 <= cuts * PREFETCH, "{again} again, {:?}", stopped.receipt);
    assert_eq!((stopped.code, stopped.receipt.dead, stopped.receipt.retried), (0, 0, 0));
    Ok(())
}

#[tokio::test]
async fn reconnect_after_broker_restart() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut env = TestEnv::on(&broker).await?;
    let mut worker = plan(env.worker("steadfast")?).start().await?;
    let mut ids = env.publish("bench.sleep", &json!({"ms": 20}), "before", 300).await?;
    worker.until_done(50).await?;
    broker.stop().await?;
    worker.until_not_ready().await?;
    assert_eq!(worker.get("/livez").await?, "ok\n", "being alive does not depend on the broker");
    broker.restart().await?;
    worker.until_ready().await?;
    prefetch_is_restored(&env).await?;
    env.reconnect().await?;
    ids.extend(env.publish("bench.sleep", &json!({"ms": 1}), "after", 100).await?);
    until_all(&worker, &ids).await?;
    account(worker, 1).await
}

#[tokio::test]
async fn reconnect_after_connection_reset() -> Result<()> {
    let env = TestEnv::new().await?;
    let (proxy, url) = FaultProxy::for_url(env.worker_url()).await?;
    let worker = plan(env.worker_through("cut", &url)?).start().await?;
    let ids = env.publish("bench.sleep", &json!({"ms": 20}), "task", 400).await?;
    for round in 1..=4 {
        worker.until_done(round * 60).await?;
        proxy.drop_connections();
    }
    until_all(&worker, &ids).await?;
    prefetch_is_restored(&env).await?;
    env.until_lane("fast", 0, 0).await?;
    let reconnects = worker.metric("garenne_reconnects_total", &["role=\"consume\""]).await?;
    assert!(reconnects >= 1.0, "{reconnects} reconnects");
    account(worker, 4).await
}

const CONSUMING: &[&str] = &["role=\"consume\""];

/// The host of the broker hangs: connections stay open, the kernel takes what is sent, nobody answers.
#[tokio::test]
async fn reconnect_after_the_broker_froze() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut env = TestEnv::on(&broker).await?;
    let url = format!("{}?heartbeat=2", env.worker_url());
    let mut worker = plan(env.worker_through("frozen-out", &url)?).start().await?;
    let mut ids = env.publish("bench.sleep", &json!({"ms": 20}), "before", 300).await?;
    worker.until_done(50).await?;
    worker.until_metric("garenne_connection_up", CONSUMING, 1.0).await?;
    broker.pause().await?;
    worker.until_not_ready_for("lane fast is not consuming: ").await?;
    worker.until_metric("garenne_connection_up", CONSUMING, 0.0).await?;
    assert_eq!(worker.get("/livez").await?, "ok\n");
    broker.unpause().await?;
    worker.until_ready().await?;
    worker.until_metric("garenne_connection_up", CONSUMING, 1.0).await?;
    prefetch_is_restored(&env).await?;
    env.reconnect().await?;
    ids.extend(env.publish("bench.sleep", &json!({"ms": 1}), "after", 50).await?);
    until_all(&worker, &ids).await?;
    assert!(worker.metric("garenne_reconnects_total", CONSUMING).await? >= 1.0);
    account(worker, 1).await
}

/// The worker's node stays, the one that leads its queue goes: another leads, and nothing is lost.
#[tokio::test]
async fn quorum_queue_loses_its_leader() -> Result<()> {
    if !Cluster::available().await {
        suite::leave_out("a cluster needs containers");
        return Ok(());
    }
    let cluster = Cluster::start(3, BrokerOptions::default()).await?;
    let env = TestEnv::on(cluster.node(0)).await?;
    // Who declares a queue leads it.
    let elsewhere = env.vhost().amqp_url_at(cluster.node(1));
    let applied = Program::new("garenne").option("--amqp-url", elsewhere).arg("topology").arg("apply");
    let applied = applied.env("GARENNE_RETRY__DELAYS", "200ms,400ms").run().await?;
    assert_eq!(applied.code, Some(0), "{:?}", applied.stderr);
    let mut worker = plan(env.worker("bereft")?).start().await?;
    let mut ids = env.publish("bench.sleep", &json!({"ms": 20}), "before", 400).await?;
    worker.until_done(60).await?;
    let leader = cluster.leader(0, env.vhost().name(), "garenne.tasks.fast").await?;
    assert_eq!(leader, 1, "the queue is led where it was declared");
    cluster.node(leader).kill().await?;
    ids.extend(env.publish("bench.fail", &json!({"times": 1}), "after", 50).await?);
    until_all(&worker, &ids).await?;
    worker.until_ready().await?;
    prefetch_is_restored(&env).await?;
    let next = cluster.leader(0, env.vhost().name(), "garenne.tasks.fast").await?;
    assert_ne!(next, leader);
    let stopped = worker.stop().await?;
    let ids: BTreeSet<_> = stopped.ids().into_iter().collect();
    let again = stopped.done.len() - ids.len();
    assert!(again as u64 <= PREFETCH, "{again} again, {:?}", stopped.receipt);
    assert_eq!((stopped.code, ids.len(), stopped.receipt.dead), (0, 450, 0), "{:?}", stopped.receipt);
    Ok(())
}

/// Nothing is refused and nothing answers: only missing heartbeats tell.
#[tokio::test]
async fn reconnect_after_silence() -> Result<()> {
    let env = TestEnv::new().await?;
    let (proxy, url) = FaultProxy::for_url(env.worker_url()).await?;
    let mut worker = plan(env.worker_through("silent", &format!("{url}?heartbeat=2"))?).start().await?;
    let mut ids = env.publish("bench.sleep", &json!({"ms": 20}), "before", 200).await?;
    worker.until_done(50).await?;
    proxy.stall();
    worker.until_not_ready().await?;
    ids.extend(env.publish("bench.sleep", &json!({"ms": 1}), "meanwhile", 50).await?);
    proxy.heal();
    worker.until_ready().await?;
    until_all(&worker, &ids).await?;
    prefetch_is_restored(&env).await?;
    account(worker, 1).await
}

#[tokio::test]
async fn reconnect_after_being_closed_by_the_broker() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = plan(env.worker("closed")?).start().await?;
    let ids = env.publish("bench.sleep", &json!({"ms": 20}), "task", 200).await?;
    worker.until_done(50).await?;
    // Its connection for consuming, found by its consumer; an operator's click.
    let connection = eventually("the consumer's connection", async || {
        let consumers = env.vhost().view().consumers().await?;
        let lane = consumers.iter().find(|it| it.queue() == "garenne.tasks.fast");
        Ok(lane.map_or(Seen::Other("none".into()), |it| Seen::Wanted(it.connection().to_owned())))
    })
    .await?;
    env.vhost().broker().management().close_connection(&connection).await?;
    until_all(&worker, &ids).await?;
    prefetch_is_restored(&env).await?;
    account(worker, 1).await
}

/// The queue is gone and with it what was in it; the worker makes it again and goes on.
#[tokio::test]
async fn queue_deleted_and_made_again() -> Result<()> {
    let env = TestEnv::new().await?;
    // It may make what is missing.
    let worker = plan(env.worker_at("mending", &env.vhost().amqp_url())?).start().await?;
    let pid = worker.id();
    env.publish("bench.noop", &json!({}), "before", 10).await?;
    worker.until_done(10).await?;
    let queue = ["queues", env.vhost().name(), "garenne.tasks.fast"];
    env.vhost().broker().management().delete(&queue).await?;
    prefetch_is_restored(&env).await?;
    let ids = env.publish("bench.noop", &json!({}), "after", 10).await?;
    until_all(&worker, &ids).await?;
    assert_eq!(worker.id(), pid);
    account(worker, 0).await
}

/// An alarm blocks who publishes. Acks travel on another connection, and copies wait.
async fn alarm_holds_up_copies_only(set: impl AsyncFn(&Broker, bool) -> Result<()>) -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let mut worker = plan(env.worker("alarmed")?).start().await?;
    worker.signal(Signal::TSTP)?;
    env.until_no_consumer("fast").await?;
    let fine = env.publish("bench.noop", &json!({}), "fine", 100).await?;
    let failing = env.publish("bench.fail", &json!({"times": 1}), "failing", 5).await?;
    set(&broker, true).await?;
    worker.signal(Signal::CONT)?;
    until_all(&worker, &fine).await?;
    env.until_lane("fast", 0, failing.len()).await?;
    worker.until_metric("garenne_connection_blocked", &[], 1.0).await?;
    // It can still do its work, and says so.
    worker.until_ready().await?;
    prefetch_is_restored(&env).await?;
    if suite::is_full() {
        // Longer than a confirm is waited for otherwise: what was sent must not be sent again.
        let began = Instant::now();
        eventually("twelve seconds", async || {
            Ok(Seen::when(began.elapsed() > Duration::from_secs(12), format_args!("{:?}", began.elapsed())))
        })
        .await?;
    }
    set(&broker, false).await?;
    let done = until_all(&worker, &failing).await?;
    assert!(done.iter().filter(|done| done.kind == "bench.fail").all(|done| done.attempt == 2), "{done:?}");
    worker.until_metric("garenne_connection_blocked", &[], 0.0).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.retried), (110, 105, 5), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn memory_alarm_holds_up_copies_only() -> Result<()> {
    alarm_holds_up_copies_only(async |broker, raised| broker.set_memory_alarm(raised).await).await
}

#[tokio::test]
async fn disk_alarm_holds_up_copies_only() -> Result<()> {
    alarm_holds_up_copies_only(async |broker, raised| broker.set_disk_alarm(raised).await).await
}
