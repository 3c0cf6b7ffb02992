//! After every kind of connection loss, the worker reconnects by itself with the same prefetch, and no task is lost.

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
    test_env::{DELAYS, TestEnv},
    wait::{Seen, eventually},
    worker::{Done, Worker, WorkerPlan},
};
use serde_json::json;

const PREFETCH: u64 = 20;

fn plan(plan: WorkerPlan) -> WorkerPlan {
    plan.stdout().lane("fast:prefetch=20,concurrency=4..4")
}

/// Waits until all of these tasks are done.
async fn until_all_done(worker: &Worker, ids: &[String]) -> Result<Vec<Done>> {
    eventually("every task is done", async || {
        let done = worker.done()?;
        let found: BTreeSet<_> = done.iter().map(|done| done.task_id.as_str()).collect();
        let missing = ids.iter().filter(|id| !found.contains(id.as_str())).count();
        Ok(if missing == 0 { Seen::Wanted(done) } else { Seen::Other(format!("{missing} missing")) })
    })
    .await
}

/// Waits until the broker lists one consumer of the lane with the configured prefetch.
async fn until_prefetch_is_restored(env: &TestEnv) -> Result<()> {
    eventually("one consumer with its prefetch", async || {
        let consumers = env.vhost().view().consumers().await?;
        let lane = consumers.iter().filter(|it| it.queue() == "garenne.tasks.fast");
        let prefetch: Vec<_> = lane.map(|it| it.prefetch).collect();
        Ok(Seen::when(prefetch == [PREFETCH], format_args!("{prefetch:?}")))
    })
    .await
}

/// Stops the worker and counts repeated tasks. Each of `cuts` lost connections may have lost the acks of one prefetch,
/// including acks in transit; no more tasks may have run twice.
async fn stop_and_count_repetitions(worker: Worker, cuts: u64) -> Result<()> {
    let stopped = worker.stop().await?;
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for done in &stopped.done {
        assert_eq!(done.attempt, 1, "a lost connection is not an attempt: {done:?}");
        *times.entry(&done.task_id).or_default() += 1;
    }
    let again = stopped.done.len() - times.len();
    assert!(again as u64 <= cuts * PREFETCH, "{again} repeated, {:?}", stopped.receipt);
    assert_eq!((stopped.code, stopped.receipt.dead, stopped.receipt.retried), (0, 0, 0));
    Ok(())
}

#[tokio::test]
async fn reconnect_after_broker_restart() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut env = TestEnv::on(&broker).await?;
    let mut worker = plan(env.worker("reconnecting")?).start().await?;
    let mut ids = env.publish("bench.sleep", &json!({"ms": 20}), "before", 300).await?;
    worker.until_done(50).await?;
    broker.stop().await?;
    worker.until_not_ready().await?;
    assert_eq!(worker.get("/livez").await?, "ok\n", "liveness does not depend on the broker");
    broker.restart().await?;
    worker.until_ready().await?;
    until_prefetch_is_restored(&env).await?;
    env.reconnect().await?;
    ids.extend(env.publish("bench.sleep", &json!({"ms": 1}), "after", 100).await?);
    until_all_done(&worker, &ids).await?;
    stop_and_count_repetitions(worker, 1).await
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
    until_all_done(&worker, &ids).await?;
    until_prefetch_is_restored(&env).await?;
    env.until_lane("fast", 0, 0).await?;
    // Deliveries of the lost channels count as lost until their tasks have ended, and not as held.
    worker.until_metric("garenne_lost_deliveries", &["lane=\"fast\""], 0.0).await?;
    worker.until_metric("garenne_pool_queue_length", &["lane=\"fast\""], 0.0).await?;
    let reconnects = worker.metric("garenne_reconnects_total", &["role=\"consume\""]).await?;
    assert!(reconnects >= 1.0, "{reconnects} reconnects");
    stop_and_count_repetitions(worker, 4).await
}

const CONSUMING: &[&str] = &["role=\"consume\""];

/// The broker's host hangs: connections stay open, its kernel accepts data, and nothing answers.
#[tokio::test]
async fn reconnect_after_the_broker_was_frozen() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut env = TestEnv::on(&broker).await?;
    let url = format!("{}?heartbeat=2", env.worker_url());
    let mut worker = plan(env.worker_through("heartbeat", &url)?).start().await?;
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
    until_prefetch_is_restored(&env).await?;
    env.reconnect().await?;
    ids.extend(env.publish("bench.sleep", &json!({"ms": 1}), "after", 50).await?);
    until_all_done(&worker, &ids).await?;
    assert!(worker.metric("garenne_reconnects_total", CONSUMING).await? >= 1.0);
    stop_and_count_repetitions(worker, 1).await
}

/// The node that leads the queue is killed, while the node of the worker's connection stays. Another node becomes the
/// leader, and no task is lost.
#[tokio::test]
async fn reconnect_is_not_needed_when_the_queues_leader_is_killed() -> Result<()> {
    if !Cluster::available().await {
        suite::leave_out("a cluster needs containers");
        return Ok(());
    }
    let cluster = Cluster::start(3, BrokerOptions::default()).await?;
    let env = TestEnv::on(cluster.node(0)).await?;
    // The node on which a queue is declared becomes its leader.
    let elsewhere = env.vhost().amqp_url_at(cluster.node(1));
    let apply = Program::garenne(&elsewhere, &["topology", "apply"]);
    apply.env("GARENNE_RETRY__DELAYS", DELAYS).succeed().await?;
    let mut worker = plan(env.worker("w")?).start().await?;
    let mut ids = env.publish("bench.sleep", &json!({"ms": 20}), "before", 400).await?;
    worker.until_done(60).await?;
    let leader = cluster.leader(0, env.vhost().name(), "garenne.tasks.fast").await?;
    assert_eq!(leader, 1, "the leader is the node on which the queue was declared");
    cluster.node(leader).kill().await?;
    ids.extend(env.publish("bench.fail", &json!({"times": 1}), "after", 50).await?);
    until_all_done(&worker, &ids).await?;
    worker.until_ready().await?;
    until_prefetch_is_restored(&env).await?;
    let next = cluster.leader(0, env.vhost().name(), "garenne.tasks.fast").await?;
    assert_ne!(next, leader);
    let stopped = worker.stop().await?;
    let ids: BTreeSet<_> = stopped.ids().into_iter().collect();
    let again = stopped.done.len() - ids.len();
    assert!(again as u64 <= PREFETCH, "{again} repeated, {:?}", stopped.receipt);
    assert_eq!((stopped.code, ids.len(), stopped.receipt.dead), (0, 450, 0), "{:?}", stopped.receipt);
    Ok(())
}

/// The connection stays open and nothing answers: only missing heartbeats show it.
#[tokio::test]
async fn reconnect_after_missing_heartbeats() -> Result<()> {
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
    until_all_done(&worker, &ids).await?;
    until_prefetch_is_restored(&env).await?;
    stop_and_count_repetitions(worker, 1).await
}

#[tokio::test]
async fn reconnect_after_the_broker_closed_the_connection() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = plan(env.worker("closed")?).start().await?;
    let ids = env.publish("bench.sleep", &json!({"ms": 20}), "task", 200).await?;
    worker.until_done(50).await?;
    // As an operator does in the management interface.
    let connection = eventually("the consumer's connection", async || {
        let consumers = env.vhost().view().consumers().await?;
        let lane = consumers.iter().find(|it| it.queue() == "garenne.tasks.fast");
        Ok(lane.map_or(Seen::Other("none".into()), |it| Seen::Wanted(it.connection().to_owned())))
    })
    .await?;
    env.vhost().broker().management().close_connection(&connection).await?;
    until_all_done(&worker, &ids).await?;
    until_prefetch_is_restored(&env).await?;
    stop_and_count_repetitions(worker, 1).await
}

/// The queue is deleted with its messages. The worker declares it again and continues.
#[tokio::test]
async fn reconnect_after_the_queue_was_deleted() -> Result<()> {
    let env = TestEnv::new().await?;
    // With the permission to declare queues.
    let worker = plan(env.worker_at("declaring", &env.vhost().amqp_url())?).start().await?;
    let pid = worker.id();
    env.publish("bench.noop", &json!({}), "before", 10).await?;
    worker.until_done(10).await?;
    let queue = ["queues", env.vhost().name(), "garenne.tasks.fast"];
    env.vhost().broker().management().delete(&queue).await?;
    until_prefetch_is_restored(&env).await?;
    let ids = env.publish("bench.noop", &json!({}), "after", 10).await?;
    until_all_done(&worker, &ids).await?;
    assert_eq!(worker.id(), pid);
    stop_and_count_repetitions(worker, 0).await
}

/// An alarm blocks connections that publish. Acks use another connection; copies wait.
async fn check_alarm(set: impl AsyncFn(&Broker, bool) -> Result<()>) -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let mut worker = plan(env.worker("blocked")?).start().await?;
    worker.signal(Signal::TSTP)?;
    env.until_no_consumer("fast").await?;
    let healthy = env.publish("bench.noop", &json!({}), "healthy", 100).await?;
    let failing = env.publish("bench.fail", &json!({"times": 1}), "failing", 5).await?;
    set(&broker, true).await?;
    worker.signal(Signal::CONT)?;
    until_all_done(&worker, &healthy).await?;
    env.until_lane("fast", 0, failing.len()).await?;
    worker.until_metric("garenne_connection_blocked", &[], 1.0).await?;
    // It still runs tasks, so it stays ready.
    worker.until_ready().await?;
    until_prefetch_is_restored(&env).await?;
    if suite::is_full() {
        // Longer than the default confirm timeout: unconfirmed copies must not be published again.
        let began = Instant::now();
        eventually("twelve seconds", async || {
            Ok(Seen::when(began.elapsed() > Duration::from_secs(12), format_args!("{:?}", began.elapsed())))
        })
        .await?;
    }
    set(&broker, false).await?;
    let done = until_all_done(&worker, &failing).await?;
    assert!(done.iter().filter(|done| done.kind == "bench.fail").all(|done| done.attempt == 2), "{done:?}");
    worker.until_metric("garenne_connection_blocked", &[], 0.0).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.retried), (110, 105, 5), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn memory_alarm_delays_only_copies() -> Result<()> {
    check_alarm(async |broker, raised| broker.set_memory_alarm(raised).await).await
}

#[tokio::test]
async fn disk_alarm_delays_only_copies() -> Result<()> {
    check_alarm(async |broker, raised| broker.set_disk_alarm(raised).await).await
}
