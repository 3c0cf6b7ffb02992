//! A lane's number of shards changes under load: no task is lost or done twice, and leftover queues are reported.

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    client::with_id,
    engine::Mode,
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::Worker,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::shards::{SHARDS, apply, console, keyed, plan, ready, until_each_once};

/// The output of `topology check` without its last line, the summary.
async fn check(env: &TestEnv, shards: usize) -> Result<Vec<String>> {
    let mut lines = console(env, "topology", shards, &["topology", "check"]).await?.run().await?.stdout;
    lines.pop();
    Ok(lines)
}

/// Publishes tasks with and without keys until `over`, and returns their number.
async fn keep_publishing(env: &TestEnv, over: &CancellationToken) -> Result<usize> {
    let mut count = 0;
    while !over.is_cancelled() {
        eventually("a shorter queue", async || {
            let waiting: usize = ready(env, 6).await?.iter().sum();
            Ok(Seen::when(over.is_cancelled() || waiting < 100, waiting))
        })
        .await?;
        let publish = async |n: usize| {
            let (id, key) = (format!("task-{n}"), format!("device-{}", n % 50));
            let task = if n.is_multiple_of(5) { with_id(&id) } else { keyed(&id, &key) };
            env.client().publish("garenne.tasks", "bench.sleep", task, br#"{"ms":2}"#).await
        };
        try_join_all((count..count + 20).map(publish)).await?;
        count += 20;
    }
    Ok(count)
}

#[tokio::test]
async fn adding_and_removing_shards_under_load_loses_and_repeats_no_task() -> Result<()> {
    let env = TestEnv::new().await?;
    // Declares all six queues first, so that each can be inspected at any time.
    apply(&env, 6).await?;
    apply(&env, 1).await?;
    let mut fleet = vec![plan(&env, "first", 1)?.start().await?];
    let over = CancellationToken::new();
    let changing = async {
        for (was, shards) in [(1, 4), (4, 6), (6, 2), (2, 1)] {
            let done = fleet[0].done()?.len();
            fleet[0].until_done(done + 50).await?;
            let worker = if shards > was {
                // A worker with more shards declares them; the other workers continue.
                plan(&env, &format!("after-{was}"), shards)?.start().await?
            } else {
                // Workers that still consume the removed shards empty them.
                apply(&env, shards).await?;
                let worker = plan(&env, &format!("after-{was}"), shards)?.start().await?;
                eventually("the removed shards are empty", async || {
                    let left: usize = ready(&env, was).await?[shards..].iter().sum();
                    Ok(Seen::when(left == 0, left))
                })
                .await?;
                worker
            };
            fleet.insert(0, worker);
            let done = fleet[0].done()?.len();
            fleet[0].until_done(done + 50).await?;
        }
        anyhow::Ok(())
    };
    let changing = async {
        let changed = changing.await;
        over.cancel();
        changed
    };
    let (changed, published) = tokio::join!(changing, keep_publishing(&env, &over));
    changed?;
    let published = published?;
    until_each_once(&fleet.iter().collect::<Vec<_>>(), published).await?;
    for stopped in try_join_all(fleet.into_iter().map(Worker::stop)).await? {
        let receipt = stopped.receipt;
        assert_eq!(
            (receipt.delivered, receipt.dead, receipt.lost_settlements),
            (receipt.acked, 0, 0),
            "{receipt:?}"
        );
    }
    assert_eq!(ready(&env, 6).await?, [0; 6]);
    env.is_empty("garenne.unroutable").await
}

#[tokio::test]
async fn topology_check_names_removed_shards_that_still_have_messages() -> Result<()> {
    let env = TestEnv::new().await?;
    apply(&env, 4).await?;
    assert_eq!(check(&env, 4).await?, Vec::<String>::new());
    for n in 0..100 {
        let task = keyed(&format!("task-{n}"), &format!("device-{n}"));
        env.client().publish("garenne.tasks", "bench.noop", task, b"{}").await?;
    }
    let before = ready(&env, 4).await?;
    apply(&env, 2).await?;
    let left = |shard: usize| {
        format!(
            "queue garenne.tasks.fast.{shard}: has {} messages and is beyond lanes.fast.shards = 2: run a \
             worker with the former number of shards until it is empty",
            before[shard]
        )
    };
    assert_eq!(check(&env, 2).await?, [left(2), left(3)]);
    env.publish("bench.noop", &json!({}), "late", 20).await?;
    assert_eq!(ready(&env, 4).await?[2..], before[2..], "removed shards receive no new tasks");

    // A worker with the former number of shards empties them.
    let worker = env.worker_at("former", &env.vhost().amqp_url())?.stdout().env(SHARDS, "4").start().await?;
    until_each_once(&[&worker], 120).await?;
    worker.stop().await?;
    assert_eq!(check(&env, 2).await?, Vec::<String>::new());

    // A worker with the new number of shards leaves the others alone. It looks for none, because the AMQP client would log an
    // error for each that does not exist.
    let worker = env.worker_at("unaware", &env.vhost().amqp_url())?.env(SHARDS, "2").start().await?;
    let log = worker.log_tail();
    ensure!(!log.contains("ERROR"), "{log}");
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_missing_plugin_is_reported_with_its_name_and_the_setting() -> Result<()> {
    let options = BrokerOptions {
        without_plugin: Some("rabbitmq_consistent_hash_exchange"),
        ..BrokerOptions::default()
    };
    let broker = Broker::start(options).await?;
    if broker.mode() != Mode::Docker {
        suite::leave_out("only a broker in a container can run without the plugin");
        return Ok(());
    }
    let env = TestEnv::on(&broker).await?;
    let expected = "lanes.fast.shards is over 1, which needs the broker's plugin rabbitmq_consistent_hash_exchange: run \
                `rabbitmq-plugins enable rabbitmq_consistent_hash_exchange` on every node, or leave lanes.fast.shards at 1";
    let ended = console(&env, "topology", 2, &["topology", "apply"]).await?.run().await?;
    assert!(ended.code == Some(1) && ended.stderr.iter().any(|line| line.contains(expected)), "{ended:?}");
    // One shard does not need the plugin.
    apply(&env, 1).await
}
