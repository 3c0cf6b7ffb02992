//! The queue of dead letters is full: bad messages leave for the queue where letters wait, and good ones go on.

use std::collections::BTreeSet;

use anyhow::Result;
use garenne_tests::harness::{
    mqtt::{BridgePlan, Mosquitto, Sender},
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;

const DEAD: &str = "garenne.dead";
const WAITING: &str = "garenne.dead.waiting";
/// Bad messages, and as many good ones. More than the prefetch of the worker and the window of the bridge.
const EACH: usize = 60;

/// Lets these queues take one message each.
async fn fill(env: &TestEnv, queues: &[&str]) -> Result<()> {
    for queue in queues {
        let pattern = format!("^{}$", queue.replace('.', "[.]"));
        let definition = json!({"max-length": 1, "overflow": "reject-publish"});
        let policy = json!({"pattern": pattern, "definition": definition, "apply-to": "queues"});
        let path = ["policies", env.vhost().name(), queue];
        env.vhost().broker().management().put(&path, &policy).await?;
        // The policy takes effect later, and quorum queues refuse messages only once they are over the limit.
        eventually(format!("{queue} is full"), async || {
            let published = env.client().publish(queue, "", Default::default(), b"1").await;
            Ok(Seen::when(published.is_err(), "it takes messages"))
        })
        .await?;
    }
    Ok(())
}

/// Lets these queues take messages again.
async fn end_limits(env: &TestEnv, queues: &[&str]) -> Result<()> {
    for queue in queues {
        env.vhost().broker().management().delete(&["policies", env.vhost().name(), queue]).await?;
    }
    Ok(())
}

/// Takes letters of this reason from these queues until there are as many as bad messages.
async fn until_letters(env: &TestEnv, queues: &[&str], reason: &str) -> Result<()> {
    let mut letters = BTreeSet::new();
    eventually(format!("{EACH} letters"), async || {
        for queue in queues {
            while let Some(taken) = env.client().take(queue).await? {
                if taken.text("garenne-reason") == reason {
                    letters.insert(taken.id().to_owned());
                }
            }
        }
        Ok(Seen::when(letters.len() == EACH, letters.len()))
    })
    .await
}

#[tokio::test]
async fn tasks_run_while_dead_letters_wait_for_their_queue() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("busy")?.stdout().option("--prefetch", "10").option("--concurrency", "1..2");
    let worker = plan.start().await?;
    fill(&env, &[DEAD]).await?;
    env.publish("bench.factorial", &json!({"n": "none"}), "bad", EACH).await?;
    env.publish("bench.noop", &json!({}), "good", EACH).await?;
    worker.until_done(EACH).await?;
    worker.until_not_ready_for("takes no dead letters").await?;
    env.until_settled(2 * EACH).await?;
    let stopped = worker.stop().await?;
    assert_eq!((stopped.receipt.acked, stopped.receipt.dead), (EACH as u64, EACH as u64));
    end_limits(&env, &[DEAD]).await?;
    // Letters that have waited for ten seconds return to the queue of dead letters.
    until_letters(&env, &[WAITING, DEAD], "invalid-payload").await
}

#[tokio::test]
async fn a_bridge_stores_readings_while_dead_letters_wait_for_their_queue() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(mosquitto) = Mosquitto::start(folder.path(), None).await? else { return Ok(()) };
    let env = TestEnv::new().await?;
    // It declares the topology.
    let worker = env.worker("any")?.stdout().start().await?;
    let plan = BridgePlan::new(&env, &mosquitto.url()).await?;
    let plan = plan.option("--subscribe", "#").option("--maps", "builtin:zigbee2mqtt");
    let mut bridge = plan.start().await?;
    fill(&env, &[DEAD]).await?;
    let mut sender = Sender::connect(&mosquitto.url()).await?;
    for n in 0..EACH {
        sender.publish("plant/boiler", "71.5").await?;
        sender.publish("zigbee2mqtt/kitchen", format!(r#"{{"temperature":{n}}}"#)).await?;
    }
    // Mosquitto sends at most 20 messages that are not acknowledged.
    bridge.until_metric("garenne_mqtt_messages_total", "outcome=\"unmapped\"", EACH as f64).await?;
    bridge.until_metric("garenne_mqtt_messages_total", "outcome=\"mapped\"", EACH as f64).await?;
    bridge.until_ready(false).await?;
    bridge.stop().await?;
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_bridge_stores_readings_while_neither_queue_takes_dead_letters() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(mosquitto) = Mosquitto::start(folder.path(), None).await? else { return Ok(()) };
    let env = TestEnv::new().await?;
    let worker = env.worker("any")?.stdout().start().await?;
    fill(&env, &[DEAD, WAITING]).await?;
    let plan = BridgePlan::new(&env, &mosquitto.url()).await?;
    let plan = plan.option("--subscribe", "#").option("--maps", "builtin:zigbee2mqtt");
    let bridge = plan.start().await?;
    let mut sender = Sender::connect(&mosquitto.url()).await?;
    for n in 0..EACH {
        sender.publish("plant/boiler", "71.5").await?;
        sender.publish("zigbee2mqtt/kitchen", format!(r#"{{"temperature":{n}}}"#)).await?;
    }
    worker.until_done(EACH).await?;
    bridge.until_not_ready_for("\"garenne.dead.waiting\" takes none either").await?;
    worker.until_not_ready_for("\"garenne.dead.waiting\" takes none either").await?;
    bridge.stop().await?;
    end_limits(&env, &[DEAD, WAITING]).await?;
    until_letters(&env, &[DEAD], "unmapped").await?;
    worker.stop().await?;
    Ok(())
}
