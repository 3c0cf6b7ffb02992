//! A bridge with a spool: while RabbitMQ is away it acknowledges messages from its disk, and is killed; afterwards each
//! message is stored once.

use anyhow::Result;
use garenne_tests::harness::{
    fault_proxy::FaultProxy,
    mqtt::{BridgePlan, Mosquitto, Sender},
    postgres::Postgres,
    process::Program,
    spool::{spool_records, until_spooled},
    test_env::TestEnv,
    wait::{Seen, eventually},
};

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
    let drained =
        drain.option("--amqp-url", env.vhost().amqp_url()).env("GARENNE_RETRY__DELAYS", "200ms,400ms");
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
