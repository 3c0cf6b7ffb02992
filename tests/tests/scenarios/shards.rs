//! A lane with several queues: tasks of one key share one, and workers consume all.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use garenne_tests::harness::{
    broker::BrokerOptions,
    client::{headers, text, with_id},
    cluster::Cluster,
    gateway::GatewayPlan,
    process::{Ended, Program},
    suite,
    test_env::TestEnv,
    users,
    wait::{Seen, eventually},
    worker::{Done, Worker, WorkerPlan},
};
use lapin::BasicProperties;
use serde_json::json;

pub(super) const SHARDS: &str = "GARENNE_LANES__FAST__SHARDS";
/// The ladder of the test environment's workers.
const LADDER: (&str, &str) = ("GARENNE_RETRY__DELAYS", "200ms,400ms");

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

/// The operator's tool, as the user of that role, with a fast lane of so many shards.
pub(super) async fn garenne(env: &TestEnv, role: &str, shards: usize, arguments: &[&str]) -> Result<Ended> {
    let url = users::user(env.vhost(), role).await?;
    let program = Program::new("garenne").option("--amqp-url", url).env(LADDER.0, LADDER.1);
    let program = program.env(SHARDS, shards.to_string());
    arguments.iter().fold(program, |program, argument| program.arg(argument)).run().await
}

pub(super) async fn apply(env: &TestEnv, shards: usize) -> Result<()> {
    let ended = garenne(env, "topology", shards, &["topology", "apply"]).await?;
    ensure!(ended.code == Some(0), "{:?}", ended.stderr);
    Ok(())
}

/// How many messages are ready in each shard.
pub(super) async fn ready(env: &TestEnv, shards: usize) -> Result<Vec<usize>> {
    let mut ready = Vec::new();
    for queue in queues(shards) {
        ready.push(env.client().ready(&queue).await?);
    }
    Ok(ready)
}

/// Waits until these workers have done so many different tasks, and makes sure that none was done twice.
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
async fn tasks_of_a_key_share_a_shard_and_each_is_done_once() -> Result<()> {
    let env = TestEnv::new().await?;
    apply(&env, 4).await?;
    for n in 0..200 {
        let task = keyed(&format!("task-{n}"), &format!("device-{}", n % 40));
        env.client().publish("garenne.tasks", "bench.noop", task, b"{}").await?;
    }
    let mut shard_of: BTreeMap<String, String> = BTreeMap::new();
    let mut again = Vec::new();
    for queue in queues(4) {
        while let Some(taken) = env.client().take(&queue).await? {
            let device = taken.text("garenne-key");
            let shard = shard_of.entry(device.clone()).or_insert_with(|| queue.clone());
            assert_eq!(*shard, queue, "{device} is on two shards");
            again.push(taken.properties);
        }
    }
    assert_eq!((again.len(), shard_of.len()), (200, 40));
    assert_eq!(shard_of.values().collect::<BTreeSet<_>>().len(), 4, "a shard is not used: {shard_of:?}");

    let worker = plan(&env, "all", 4)?.start().await?;
    for task in again {
        env.client().publish("garenne.tasks", "bench.noop", task, b"{}").await?;
    }
    // Failures come back by the ladder, and a foreign client need not know of keys or ids.
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
async fn a_soft_stop_hands_back_what_every_shard_gave() -> Result<()> {
    let env = TestEnv::new().await?;
    apply(&env, 4).await?;
    for n in 0..400 {
        let task = keyed(&format!("task-{n}"), &format!("device-{n}"));
        env.client().publish("garenne.tasks", "bench.sleep", task, br#"{"ms":700}"#).await?;
    }
    assert!(ready(&env, 4).await?.iter().all(|&count| count >= 20), "{:?}", ready(&env, 4).await?);
    let worker = plan(&env, "stopping", 4)?.option("--shutdown-mode", "soft").start().await?;
    worker.until_holds("fast", 2, 38).await?;
    eventually("the pool's places are shared", async || {
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
    eventually("what was handed back is there again", async || {
        let ready: usize = ready(&env, 4).await?.iter().sum();
        Ok(Seen::when(ready == left, format_args!("{ready} of {left}")))
    })
    .await
}

#[tokio::test]
async fn dead_letters_of_a_sharded_lane_go_back_to_all_shards() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = plan(&env, "failing", 4)?.start().await?;
    // Without a key they come by one shard; bound to no lane, they go back past the bindings.
    env.publish("bench.sleep", &json!({"ms": "many"}), "odd", 20).await?;
    for n in 0..20 {
        env.client()
            .publish("garenne.shards.fast", "odd.kind", with_id(&format!("unbound-{n}")), b"{}")
            .await?;
    }
    env.until_queue("garenne.dead", 40, 0).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.dead), (40, 40), "{receipt:?}");
    let replayed = garenne(&env, "console", 4, &["dead", "replay", "--all"]).await?;
    assert_eq!(replayed.code, Some(0), "{:?}", replayed.stderr);
    // One of them is seen again by the second walk, which makes sure that the first's acks arrived.
    assert_eq!(replayed.stdout, ["replayed 40 of 40 dead letters"]);
    let (mut ids, mut used) = (BTreeSet::new(), 0);
    for queue in queues(4) {
        let before = ids.len();
        while let Some(taken) = env.client().take(&queue).await? {
            let id = taken.id().to_owned();
            assert!(ids.insert(id.clone()), "{id} is there twice: {taken:?}");
        }
        used += usize::from(ids.len() > before);
    }
    assert_eq!((ids.len(), used), (40, 4), "{ids:?}");
    env.is_empty("garenne.unroutable").await
}

#[tokio::test]
async fn programs_give_their_tasks_keys_and_need_no_further_rights() -> Result<()> {
    let env = TestEnv::new().await?;
    let gateway = GatewayPlan::new(&env)?.env(SHARDS, "4").env(LADDER.0, LADDER.1).start().await?;
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
                assert_eq!(key, taken.id(), "without a key of its own a task goes by its id");
            } else {
                assert!(key.starts_with('d'), "{key}");
            }
            assert_eq!(shard_of.entry(key).or_insert_with(|| queue.clone()), &queue);
        }
    }
    assert_eq!(shard_of.len(), 60);
    assert_eq!(shard_of.values().collect::<BTreeSet<_>>().len(), 4);

    // Follow-ups go straight to the shards, past the tasks' exchange, which a worker may not publish to.
    let worker = plan(&env, "parent", 4)?.start().await?;
    let parent = json!({"kind": "bench.noop", "payload": {}, "count": 50});
    env.publish("bench.follow", &parent, "parent", 1).await?;
    until_each_once(&[&worker], 51).await?;
    assert_eq!(worker.stop().await?.receipt.acked, 51);
    Ok(())
}

/// Each of three nodes leads some of six queues; one that neither the worker nor the publisher is at is killed.
#[tokio::test]
async fn a_node_of_a_cluster_dies_under_a_sharded_lane() -> Result<()> {
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
    assert_eq!(led.len(), 3, "leaders are not spread: {led:?}");

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
    // Every one of these is confirmed, or this fails.
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
    let again = stopped.done.len() - 1500;
    assert!(again <= 40, "{again} again, {:?}", stopped.receipt);
    assert_eq!((stopped.code, stopped.receipt.dead), (0, 0), "{:?}", stopped.receipt);
    assert_eq!(ready(&env, COUNT).await?, [0; COUNT]);
    Ok(())
}
