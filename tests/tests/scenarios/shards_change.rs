//! A lane's number of shards changes under load: nothing is lost, doubled, or left without a word.

use anyhow::Result;
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

use super::shards::{SHARDS, apply, garenne, keyed, plan, ready, until_each_once};

/// What `topology check` says beside its summary.
async fn check(env: &TestEnv, shards: usize) -> Result<Vec<String>> {
    let mut said = garenne(env, "topology", shards, &["topology", "check"]).await?.stdout;
    said.pop();
    Ok(said)
}

/// Publishes until it is over, with keys and without; answers how many.
async fn keep_publishing(env: &TestEnv, over: &CancellationToken) -> Result<usize> {
    let mut count = 0;
    while !over.is_cancelled() {
        eventually("the fleet works", async || {
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
async fn a_lane_grows_and_shrinks_under_load_and_nothing_is_lost_or_doubled() -> Result<()> {
    let env = TestEnv::new().await?;
    // So that every queue can be looked at all the time.
    apply(&env, 6).await?;
    apply(&env, 1).await?;
    let mut fleet = vec![plan(&env, "first", 1)?.start().await?];
    let over = CancellationToken::new();
    let changing = async {
        for (was, shards) in [(1, 4), (4, 6), (6, 2), (2, 1)] {
            let done = fleet[0].done()?.len();
            fleet[0].until_done(done + 50).await?;
            let worker = if shards > was {
                // Whoever has more shards than there are makes them; the others' work goes on.
                plan(&env, &format!("after-{was}"), shards)?.start().await?
            } else {
                // What the queues beyond hold is done by those that know them.
                apply(&env, shards).await?;
                let worker = plan(&env, &format!("after-{was}"), shards)?.start().await?;
                eventually("the shards beyond are empty", async || {
                    let beyond: usize = ready(&env, was).await?[shards..].iter().sum();
                    Ok(Seen::when(beyond == 0, beyond))
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
async fn a_check_names_what_nobody_consumes_and_what_leads_astray() -> Result<()> {
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
    assert_eq!(ready(&env, 4).await?[2..], before[2..], "what is beyond gets nothing new");

    // A worker of the former number empties them.
    let worker = env.worker_at("former", &env.vhost().amqp_url())?.stdout().env(SHARDS, "4").start().await?;
    until_each_once(&[&worker], 120).await?;
    worker.stop().await?;
    assert_eq!(check(&env, 2).await?, Vec::<String>::new());

    // And one of the new number says what it leaves.
    apply(&env, 4).await?;
    for n in 0..100 {
        let task = keyed(&format!("again-{n}"), &format!("device-{n}"));
        env.client().publish("garenne.tasks", "bench.noop", task, b"{}").await?;
    }
    let worker = env.worker_at("unaware", &env.vhost().amqp_url())?.env(SHARDS, "2").start().await?;
    worker.until_logged("garenne.tasks.fast.2").await?;
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_broker_without_the_plugin_is_told_of_by_setting_and_name() -> Result<()> {
    let options = BrokerOptions {
        without_plugin: Some("rabbitmq_consistent_hash_exchange"),
        ..BrokerOptions::default()
    };
    let broker = Broker::start(options).await?;
    if broker.mode() != Mode::Docker {
        suite::leave_out("only containers choose their plugins");
        return Ok(());
    }
    let env = TestEnv::on(&broker).await?;
    let says = "lanes.fast.shards is over 1, which needs the broker's plugin rabbitmq_consistent_hash_exchange: run \
                `rabbitmq-plugins enable rabbitmq_consistent_hash_exchange` on every node, or leave lanes.fast.shards at 1";
    let ended = garenne(&env, "topology", 2, &["topology", "apply"]).await?;
    assert!(ended.code == Some(1) && ended.stderr.iter().any(|line| line.contains(says)), "{ended:?}");
    // With one shard nothing of it is needed.
    apply(&env, 1).await
}
