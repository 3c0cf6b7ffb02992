//! A bridge with a spool: while RabbitMQ is away it acknowledges messages from its disk, and is killed; afterwards each
//! message is stored once.

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    dashboard::Dashboard,
    fault_proxy::FaultProxy,
    mqtt::{BridgePlan, Mosquitto, Sender},
    postgres::Postgres,
    process::Program,
    spool::{spool_records, until_spooled},
    test_env::{DELAYS, TestEnv},
    users,
    wait::{Seen, eventually},
};
use serde_json::{Value, json};

/// Messages in each phase.
const MESSAGES: usize = 40;

/// A message with a time of its own: its repetition is the same reading.
async fn send(sender: &mut Sender, numbers: std::ops::Range<usize>) -> Result<()> {
    for number in numbers {
        let payload = format!(r#"{{"temperature":20.5,"last_seen":{}}}"#, (1_790_000_000 + number) * 1000);
        sender.publish("zigbee2mqtt/kitchen", payload).await?;
    }
    Ok(())
}

#[tokio::test]
async fn messages_that_were_acknowledged_from_the_spool_are_stored_once_after_a_kill() -> Result<()> {
    let env = TestEnv::new().await?;
    let Some(mosquitto) = Mosquitto::start(env.folder(), None).await? else { return Ok(()) };
    let database = Postgres::shared().await?.database().await?;
    let worker = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", database.url());
    let worker = worker.start().await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let spool = env.folder().join("spool");
    let plan = BridgePlan::at(&url, &mosquitto.url());
    let plan = plan.option("--subscribe", "#").option("--maps", "builtin:zigbee2mqtt");
    let plan = plan.option("--spool", &spool).option("--spool-min-free", "0");
    let mut sender = Sender::connect(&mosquitto.url()).await?;

    // It starts without RabbitMQ. Mosquitto sends at most 20 messages that are not acknowledged.
    proxy.cut();
    let bridge = plan.start().await?;
    sender.publish("plant/boiler", "71.5").await?;
    send(&mut sender, 0..MESSAGES).await?;
    let spooled = (MESSAGES + 1) as f64;
    bridge.until_metric("garenne_spool_records_total", "event=\"accepted\"", spooled).await?;
    bridge.kill().await?;
    assert_eq!(spool_records(&spool).await?, MESSAGES + 1);

    // The next process drains what the first one left, behind which everything goes.
    let bridge = plan.start().await?;
    send(&mut sender, MESSAGES..2 * MESSAGES).await?;
    until_spooled(&spool, |records| records > 2 * MESSAGES).await?;
    proxy.heal();
    until_spooled(&spool, |records| records == 0).await?;
    send(&mut sender, 2 * MESSAGES..3 * MESSAGES).await?;
    let query = "SELECT count(*), count(DISTINCT time) FROM garenne_readings WHERE device = 'kitchen'";
    let client = database.connect().await?;
    let all = eventually("every message is stored", async || {
        let row = client.query_one(query, &[]).await?;
        let (all, distinct): (i64, i64) = (row.get(0), row.get(1));
        Ok(if distinct == 3 * MESSAGES as i64 {
            Seen::Wanted(all)
        } else {
            Seen::Other(distinct.to_string())
        })
    })
    .await?;
    assert_eq!(all, 3 * MESSAGES as i64, "no message is stored twice");
    let letters = env.take_all("garenne.dead", 1).await?;
    let text = |name: &str| letters[0].text(name);
    assert_eq!(
        (text("garenne-source"), text("garenne-reason")),
        ("topic:plant/boiler".to_owned(), "unmapped".to_owned())
    );
    assert_eq!((text("garenne-worker").as_str(), &letters[0].body[..]), ("bridge", &b"71.5"[..]));
    bridge.stop().await?;
    worker.kill().await?;
    Ok(())
}

#[tokio::test]
async fn a_bridge_is_shown_with_its_subscriptions_its_messages_and_its_spool() -> Result<()> {
    let env = TestEnv::new().await?;
    let Some(mut mosquitto) = Mosquitto::start(env.folder(), None).await? else { return Ok(()) };
    let worker = env.worker("any")?.start().await?;
    let (proxy, url) = FaultProxy::for_url(&users::user(env.vhost(), "bridge").await?).await?;
    let plan = BridgePlan::at(&url, &mosquitto.url()).option("--maps", "builtin:zigbee2mqtt");
    let plan = plan.option("--subscribe", "zigbee2mqtt/#").env("GARENNE_EVENTS__HEARTBEAT", "100ms");
    let plan = plan.option("--spool", env.folder().join("spool")).option("--spool-min-free", "0");
    let bridge = plan.option("--spool-drain-rate", "1").start().await?;
    let dashboard = Dashboard::start(&env).await?;
    let shown = |now: &Value| {
        let shown = &now["bridges"][0];
        shown["id"] == "bridge" && shown["state"] == "open" && shown["bridge"]["connected"] == true
    };
    dashboard.until("the bridge", shown).await?;

    proxy.cut();
    let mut sender = Sender::connect(&mosquitto.url()).await?;
    send(&mut sender, 0..MESSAGES).await?;
    let accepted = MESSAGES as f64;
    bridge.until_metric("garenne_spool_records_total", "event=\"accepted\"", accepted).await?;
    proxy.heal();
    let shown = |now: &Value| {
        let beat = &now["bridges"][0];
        beat["bridge"]["messages"] == json!({"mapped": MESSAGES})
            && beat["bridge"]["subscriptions"] == json!(["zigbee2mqtt/#"])
            && beat["spool"]["records"].as_u64().is_some_and(|records| records > 0)
            && beat["spool"]["oldest_at"].is_i64()
    };
    dashboard.until("the spool's content", shown).await?;
    let status = env.try_garenne(&["status"]).await?.stdout.join("\n");
    let line = status.lines().find(|line| line.starts_with("bridge  ") && line.contains("zigbee2mqtt/#"));
    let line = line.with_context(|| status.clone())?;
    ensure!(line.contains(&format!("mapped: {MESSAGES}")) && line.contains(" tasks, "), "{line}");

    mosquitto.stop().await?;
    dashboard
        .until("that it is not subscribed", |now| now["bridges"][0]["bridge"]["connected"] == false)
        .await?;
    bridge.stop().await?;
    dashboard.until("its end", |now| now["bridges"][0]["state"] == "stopped").await?;
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn spool_drain_publishes_what_a_stopped_bridge_left() -> Result<()> {
    let env = TestEnv::new().await?;
    let Some(mosquitto) = Mosquitto::start(env.folder(), None).await? else { return Ok(()) };
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let spool = env.folder().join("spool");
    proxy.cut();
    let plan = BridgePlan::at(&url, &mosquitto.url()).option("--maps", "builtin:zigbee2mqtt");
    let plan = plan.option("--subscribe", "#").option("--spool", &spool).option("--spool-min-free", "0");
    let bridge = plan.start().await?;
    let mut sender = Sender::connect(&mosquitto.url()).await?;
    send(&mut sender, 0..1).await?;
    sender.publish("plant/boiler", "71.5").await?;
    bridge.until_metric("garenne_spool_records_total", "event=\"accepted\"", 2.0).await?;
    bridge.stop().await?;
    let drain = Program::new("garenne-producer").arg("spool").arg("drain").arg(&spool);
    let drained = drain.option("--amqp-url", env.vhost().amqp_url()).env("GARENNE_RETRY__DELAYS", DELAYS);
    let drained = drained.run().await?;
    assert_eq!(drained.code, Some(0), "{:?}", drained.stderr);
    env.take_all("garenne.tasks.fast", 1).await?;
    let letters = env.take_all("garenne.dead", 1).await?;
    assert_eq!(
        (letters[0].text("garenne-reason").as_str(), &letters[0].body[..]),
        ("unmapped", &b"71.5"[..])
    );
    Ok(())
}
