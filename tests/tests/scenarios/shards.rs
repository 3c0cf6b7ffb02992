//! A lane with several queues (shards): tasks with the same key share a queue, and workers consume all of them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use garenne_tests::harness::{
    broker::BrokerOptions,
    client::{headers, text, with_id},
    cluster::Cluster,
    gateway::GatewayPlan,
    process::Program,
    suite,
    test_env::{DELAYS, TestEnv},
    users,
    wait::{Seen, eventually},
    worker::{Done, Worker, WorkerPlan},
};
use lapin::BasicProperties;
use serde_json::json;

pub(super) const SHARDS: &str = "GARENNE_LANES__FAST__SHARDS";

pub(super) fn plan(env: &TestEnv, name: &str, shards: usize) -> Result<WorkerPlan> {
    let plan = env.worker(name)?.stdout().env(SHARDS, shards.to_string());
    Ok(plan.lane("fast:prefetch=40,concurrency=2..2"))
}

pub(super) fn queues(shards: usize) -> Vec<String> {
    let rest = (1..shards).map(|shard| format!("garenne.tasks.fast.{shard}"));
    ["garenne.tasks.fast".to_owned()].into_iter().chain(rest).collect()
}

pub(super) fn keyed(id: &str, key: &str) -> BasicProperties {
    with_id(id).with_headers(headers([("garenne-key", text(key))]))
}

/// The console as the user of this role, with this number of shards of the fast lane.
pub(super) async fn console(env: &TestEnv, role: &str, shards: usize, arguments: &[&str]) -> Result<Program> {
    let program = Program::garenne(&users::user(env.vhost(), role).await?, arguments);
    Ok(program.env("GARENNE_RETRY__DELAYS", DELAYS).env(SHARDS, shards.to_string()))
}

pub(super) async fn apply(env: &TestEnv, shards: usize) -> Result<()> {
    console(env, "topology", shards, &["topology", "apply"]).await?.succeed().await.map(drop)
}

/// The number of ready messages in each shard.
pub(super) async fn ready(env: &TestEnv, shards: usize) -> Result<Vec<usize>> {
    let mut ready = Vec::new();
    for queue in queues(shards) {
        ready.push(env.client().ready(&queue).await?);
    }
    Ok(ready)
}

/// Waits until these workers have done `count` tasks, and fails if a task was done twice.
pub(super) async fn until_each_once(workers: &[&Worker], count: usize) -> Result<()> {
    eventually(format!("{count} tasks are done"), async || {
        let mut runs: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for worker in workers {
            for Done { task_id, worker, started_at, attempt, .. } in worker.done()? {
                runs.entry(task_id).or_default().push(format!("{worker} at {started_at}, attempt {attempt}"));
            }
        }
        let tasks = runs.len();
        runs.retain(|_, runs| runs.len() > 1);
        if !runs.is_empty() {
            let logs: Vec<_> = workers.iter().map(|worker| worker.log_tail()).collect();
            return Ok(Seen::Never(format!("done more than once: {runs:#?}, logs: {logs:#?}")));
        }
        Ok(Seen::when(tasks == count, tasks))
    })
    .await
}

#[tokio::test]
async fn tasks_with_the_same_key_share_a_shard_and_are_done_once() -> Result<()> {
    let env = TestEnv::new().await?;
    apply(&env, 4).await?;
    for n in 0..200 {
        let task = keyed(&format!("task-{n}"), &format!("device-{}", n % 40));
        env.client().publish("garenne.tasks", "bench.noop", task, b"{}").await?;
    }
    let mut shard_of: BTreeMap<String, String> = BTreeMap::new();
    let mut taken_tasks = Vec::new();
    for queue in queues(4) {
        while let Some(taken) = env.client().take(&queue).await? {
            let device = taken.text("garenne-key");
            let shard = shard_of.entry(device.clone()).or_insert_with(|| queue.clone());
            assert_eq!(*shard, queue, "{device} has tasks on two shards");
            taken_tasks.push(taken.properties);
        }
    }
    assert_eq!((taken_tasks.len(), shard_of.len()), (200, 40));
    assert_eq!(shard_of.values().collect::<BTreeSet<_>>().len(), 4, "a shard has no tasks: {shard_of:?}");

    let worker = plan(&env, "all", 4)?.start().await?;
    for task in taken_tasks {
        env.client().publish("garenne.tasks", "bench.noop", task, b"{}").await?;
    }
    // Failed tasks return through the retry queues. Foreign clients may publish without keys and ids.
    for n in 0..20 {
        let task = keyed(&format!("failing-{n}"), &format!("device-{n}"));
        env.client().publish("garenne.tasks", "bench.fail", task, br#"{"times":1}"#).await?;
    }
    for _ in 0..20 {
        env.client().publish("garenne.tasks", "bench.noop", BasicProperties::default(), b"{}").await?;
    }
    until_each_once(&[&worker], 240).await?;
    let stopped = worker.stop().await?;
    let receipt = &stopped.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.retried), (260, 240, 20), "{receipt:?}");
    assert_eq!(ready(&env, 4).await?, [0; 4]);
    env.is_empty("garenne.dead").await?;
    env.is_empty("garenne.unroutable").await
}

#[tokio::test]
async fn a_soft_stop_requeues_waiting_tasks_of_every_shard() -> Result<()> {
    let env = TestEnv::new().await?;
    apply(&env, 4).await?;
    for n in 0..400 {
        let task = keyed(&format!("task-{n}"), &format!("device-{n}"));
        env.client().publish("garenne.tasks", "bench.sleep", task, br#"{"ms":700}"#).await?;
    }
    assert!(ready(&env, 4).await?.iter().all(|&count| count >= 20), "{:?}", ready(&env, 4).await?);
    let worker = plan(&env, "stopping", 4)?.option("--shutdown-mode", "soft").start().await?;
    worker.until_holds("fast", 2, 38).await?;
    eventually("each shard's consumer has a quarter of the prefetch", async || {
        let consumers = env.vhost().view().consumers().await?;
        let lane = consumers.iter().filter(|it| it.queue().starts_with("garenne.tasks.fast"));
        let prefetches: Vec<_> = lane.map(|it| it.prefetch).collect();
        Ok(Seen::when(prefetches == [10; 4], format_args!("{prefetches:?}")))
    })
    .await?;
    let stopped = worker.stop().await?;
    let receipt = &stopped.receipt;
    assert_eq!((receipt.delivered, receipt.acked + receipt.requeued), (receipt.delivered, receipt.delivered));
    assert!(receipt.acked >= 2 && receipt.requeued >= 30, "{receipt:?}");
    let left = 400 - receipt.acked as usize;
    eventually("the requeued tasks are ready", async || {
        let ready: usize = ready(&env, 4).await?.iter().sum();
        Ok(Seen::when(ready == left, format_args!("{ready} of {left}")))
    })
    .await
}

#[tokio::test]
async fn dead_letters_of_a_sharded_lane_are_replayed_to_all_shards() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = plan(&env, "failing", 4)?.env("GARENNE_UNKNOWN_KIND_WAIT", "0s").start().await?;
    // Tasks without a key all go to one shard. The kind of the others is bound to no lane, so a replay must not depend
    // on bindings.
    env.publish("bench.sleep", &json!({"ms": "many"}), "odd", 20).await?;
    for n in 0..20 {
        env.client()
            .publish("garenne.shards.fast", "odd.kind", with_id(&format!("unbound-{n}")), b"{}")
            .await?;
    }
    env.until_queue("garenne.dead", 40, 0).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.dead), (40, 40), "{receipt:?}");
    let replayed = console(&env, "console", 4, &["dead", "replay", "--all"]).await?.succeed().await?;
    // The second pass, which checks that the acks of the first have arrived, sees one of the letters again.
    assert_eq!(replayed.stdout, ["replayed 40 of 40 dead letters"]);
    let (mut ids, mut used) = (BTreeSet::new(), 0);
    for queue in queues(4) {
        let before = ids.len();
        while let Some(taken) = env.client().take(&queue).await? {
            let id = taken.id().to_owned();
            assert!(ids.insert(id.clone()), "{id} was replayed twice: {taken:?}");
        }
        used += usize::from(ids.len() > before);
    }
    assert_eq!((ids.len(), used), (40, 4), "{ids:?}");
    env.is_empty("garenne.unroutable").await
}

#[tokio::test]
async fn gateway_and_worker_set_keys_and_need_no_further_permissions() -> Result<()> {
    let env = TestEnv::new().await?;
    let gateway =
        GatewayPlan::new(&env)?.env(SHARDS, "4").env("GARENNE_RETRY__DELAYS", DELAYS).start().await?;
    for device in 0..40 {
        for value in 0..2 {
            let time = format!("2026-01-01T00:00:0{value}Z");
            let reading = json!({"device": format!("d{device}"), "metric": "t", "value": value, "unit": "Cel", "time": time});
            gateway.post("/v1/readings", "application/json", reading.to_string()).await?.ids()?;
        }
    }
    for _ in 0..20 {
        gateway.post("/v1/tasks/bench.noop", "application/json", "{}").await?.ids()?;
    }
    assert_eq!(gateway.stop().await?.code, Some(0));
    let mut shard_of: BTreeMap<String, String> = BTreeMap::new();
    for queue in queues(4) {
        while let Some(taken) = env.client().take(&queue).await? {
            let key = taken.text("garenne-key");
            if taken.properties.kind().as_ref().is_some_and(|kind| kind.as_str() == "bench.noop") {
                assert_eq!(key, taken.id(), "the key of a task without one is its id");
            } else {
                assert!(key.starts_with('d'), "{key}");
            }
            assert_eq!(shard_of.entry(key).or_insert_with(|| queue.clone()), &queue);
        }
    }
    assert_eq!(shard_of.len(), 60);
    assert_eq!(shard_of.values().collect::<BTreeSet<_>>().len(), 4);

    // Follow-ups are published to the shards directly, because workers may not publish to the tasks exchange.
    let worker = plan(&env, "parent", 4)?.start().await?;
    let parent = json!({"kind": "bench.noop", "payload": {}, "count": 50});
    env.publish("bench.follow", &parent, "parent", 1).await?;
    until_each_once(&[&worker], 51).await?;
    assert_eq!(worker.stop().await?.receipt.acked, 51);
    Ok(())
}

/// Each of three nodes leads some of six queues. The test kills a node to which neither worker nor publisher is
/// connected.
#[tokio::test]
async fn a_node_of_a_cluster_is_killed_under_a_sharded_lane() -> Result<()> {
    if !Cluster::available().await {
        suite::leave_out("a cluster needs containers");
        return Ok(());
    }
    const COUNT: usize = 6;
    let cluster = Cluster::start(3, BrokerOptions::default()).await?;
    let env = TestEnv::on(cluster.node(0)).await?;
    apply(&env, COUNT).await?;
    let mut led: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for queue in queues(COUNT) {
        led.entry(cluster.leader(0, env.vhost().name(), &queue).await?).or_default().push(queue);
    }
    assert_eq!(led.len(), 3, "a node leads no queue: {led:?}");

    let worker = plan(&env, "steady", COUNT)?.start().await?;
    let publish = async |ids: std::ops::Range<usize>| -> Result<()> {
        for n in ids {
            let (id, key) = (format!("task-{n}"), format!("device-{n}"));
            let task = if n % 4 == 0 { with_id(&id) } else { keyed(&id, &key) };
            env.client().publish("garenne.tasks", "bench.sleep", task, br#"{"ms":4}"#).await?;
        }
        Ok(())
    };
    publish(0..600).await?;
    worker.until_done(100).await?;
    let killing = async {
        worker.until_done(300).await?;
        cluster.node(2).kill().await
    };
    // Publishing fails unless every task is confirmed.
    let (killed, published) = tokio::join!(killing, publish(600..1500));
    killed?;
    published?;
    eventually("every task is done", async || {
        let done: BTreeSet<_> = worker.done()?.into_iter().map(|done| done.task_id).collect();
        Ok(Seen::when(done.len() == 1500, done.len()))
    })
    .await?;
    for queue in queues(COUNT) {
        assert_ne!(cluster.leader(0, env.vhost().name(), &queue).await?, 2, "{queue}");
    }
    let stopped = worker.stop().await?;
    let repeated = stopped.done.len() - 1500;
    assert!(repeated <= 40, "{repeated} repeated, {:?}", stopped.receipt);
    assert_eq!((stopped.code, stopped.receipt.dead), (0, 0), "{:?}", stopped.receipt);
    assert_eq!(ready(&env, COUNT).await?, [0; COUNT]);
    Ok(())
}
