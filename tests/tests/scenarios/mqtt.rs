//! The MQTT bridge with real MQTT brokers: no message that a broker accepted is lost, whichever process is killed.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use garenne_tests::harness::{
    authority::Authority,
    broker::{Broker, BrokerOptions},
    engine::{self, Mode},
    fault_proxy::FaultProxy,
    mqtt::{Bridge, BridgePlan, Mosquitto, Sender},
    postgres::{Database, Postgres},
    process::{Program, Signal},
    suite,
    test_env::{DELAYS, TestEnv},
    wait::{Seen, eventually},
};

/// Messages between two faults.
const MESSAGES: usize = 30;

/// A Zigbee device whose messages have a time each.
struct Device {
    url: String,
    sender: Option<Sender>,
    second: i64,
    /// The times of the messages that the broker accepted.
    accepted: BTreeSet<i64>,
}

impl Device {
    fn new(url: String) -> Self {
        Self { url, sender: None, second: 1_790_000_000, accepted: BTreeSet::new() }
    }

    /// Sends a message until the broker accepts one.
    async fn send(&mut self) -> Result<()> {
        eventually("the broker accepts a message", async || {
            self.second += 1;
            let sender = match &mut self.sender {
                Some(sender) => sender,
                None => self.sender.insert(Sender::connect(&self.url).await?),
            };
            let payload = format!(r#"{{"temperature":20.5,"last_seen":{}}}"#, self.second * 1000);
            if let Err(error) = sender.publish("zigbee2mqtt/kitchen", payload).await {
                self.sender = None;
                return Err(error);
            }
            self.accepted.insert(self.second);
            Ok(Seen::Wanted(()))
        })
        .await
    }

    async fn send_many(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.send().await?;
        }
        Ok(())
    }
}

/// The times of the stored readings of the device, in seconds. A reading that is stored twice is in it twice.
async fn stored(database: &Database) -> Result<Vec<i64>> {
    let client = database.connect().await?;
    let query = "SELECT extract(epoch FROM time)::bigint FROM garenne_readings WHERE device = 'kitchen'";
    let rows = client.query(query, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Waits until every accepted message is stored, and checks that none is stored twice.
async fn until_stored(database: &Database, accepted: &BTreeSet<i64>) -> Result<()> {
    let all = eventually("every accepted message is stored", async || {
        let all = stored(database).await?;
        let found: BTreeSet<i64> = all.iter().copied().collect();
        let missing = accepted.difference(&found).count();
        Ok(if missing == 0 { Seen::Wanted(all) } else { Seen::Other(format!("{missing} missing")) })
    })
    .await?;
    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "no message is stored twice");
    Ok(())
}

fn zigbee(plan: BridgePlan) -> BridgePlan {
    plan.option("--subscribe", "zigbee2mqtt/#").option("--maps", "builtin:zigbee2mqtt")
}

/// Kills the bridge while it holds messages: the MQTT broker has sent them, and the bridge, which is frozen, has not
/// acknowledged them.
async fn killed(bridge: Bridge, device: &mut Device) -> Result<()> {
    bridge.process().signal(Signal::STOP)?;
    device.send_many(MESSAGES).await?;
    bridge.kill().await.map(drop)
}

#[tokio::test]
async fn accepted_messages_are_stored_once_under_kills_of_the_bridge_and_the_amqp_broker() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(mut mosquitto) = Mosquitto::start(folder.path(), None).await? else { return Ok(()) };
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", database.url());
    let worker = worker.start().await?;
    let plan = zigbee(BridgePlan::new(&env, &mosquitto.url()).await?);
    let mut device = Device::new(mosquitto.url());
    let mut bridge = plan.start().await?;
    device.send_many(MESSAGES).await?;
    until_stored(&database, &device.accepted).await?;
    broker.sync_declarations().await?;

    // The bridge alone.
    killed(bridge, &mut device).await?;
    bridge = plan.start().await?;
    // The AMQP broker: the MQTT broker keeps the messages, and the bridge is killed meanwhile.
    let (sent, killed_broker) = tokio::join!(device.send_many(MESSAGES), broker.kill());
    sent?;
    killed_broker?;
    bridge.until_ready(false).await?;
    device.send_many(MESSAGES).await?;
    // It has read these messages and cannot publish them.
    bridge.until_metric("garenne_mqtt_in_flight", "", 1.0).await?;
    bridge.kill().await?;
    broker.restart().await?;
    bridge = plan.start().await?;
    device.send_many(MESSAGES).await?;
    // The MQTT broker.
    mosquitto.stop().await?;
    bridge.until_ready(false).await?;
    mosquitto.restart().await?;
    bridge.until_ready(true).await?;
    device.send_many(MESSAGES).await?;

    until_stored(&database, &device.accepted).await?;
    assert!(bridge.metric("garenne_mqtt_connections_total", "").await? >= 2.0);
    bridge.stop().await?;
    worker.kill().await?;
    Ok(())
}

#[tokio::test]
async fn messages_from_rabbitmqs_mqtt_plugin_are_stored_once_under_kills_and_an_outage() -> Result<()> {
    if engine::mode().await == Mode::Process {
        suite::leave_out("a broker with MQTT runs in a container only");
        return Ok(());
    }
    let broker = Broker::start(BrokerOptions { mqtt: true, ..BrokerOptions::default() }).await?;
    let mqtt_url = broker.mqtt_url().context("MQTT is enabled")?;
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", database.url());
    let worker = worker.start().await?;
    let (proxy, amqp_url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let plan = zigbee(BridgePlan::at(&amqp_url, &mqtt_url)).option("--protocol", "5");
    let mut device = Device::new(mqtt_url);
    let mut bridge = plan.start().await?;
    device.send_many(MESSAGES).await?;
    killed(bridge, &mut device).await?;
    bridge = plan.start().await?;
    device.send_many(MESSAGES).await?;
    proxy.cut();
    device.send_many(MESSAGES).await?;
    bridge.until_ready(false).await?;
    proxy.heal();
    bridge.until_ready(true).await?;
    // The MQTT broker: a message that it acknowledged is on its disk.
    broker.sync_declarations().await?;
    broker.kill().await?;
    bridge.until_ready(false).await?;
    broker.restart().await?;
    bridge.until_ready(true).await?;
    device.send_many(MESSAGES).await?;

    until_stored(&database, &device.accepted).await?;
    bridge.stop().await?;
    assert_eq!(worker.stop().await?.receipt.dead, 0);
    Ok(())
}

#[tokio::test]
async fn a_stopped_bridge_has_acknowledged_what_it_stored() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(mosquitto) = Mosquitto::start(folder.path(), None).await? else { return Ok(()) };
    let env = TestEnv::new().await?;
    let worker = env.worker("any")?.stdout().start().await?;
    let plan = BridgePlan::new(&env, &mosquitto.url()).await?;
    let map = folder.path().join("numbers.toml");
    std::fs::write(&map, "[[map]]\ntopic = \"n/+\"\ndevice = \"{1}\"\nmetric = \"number\"\n")?;
    let plan = plan.option("--subscribe", "n/+").option("--maps", &map).ungrouped();
    let mut sender = Sender::connect(&mosquitto.url()).await?;
    // Without a time in the messages, a repeat would be a further reading.
    let mut bridge = plan.start().await?;
    for number in 0..100 {
        sender.publish("n/a", number.to_string()).await?;
        if number % 25 == 24 {
            bridge.stop().await?;
            bridge = plan.start().await?;
        }
    }
    let done = worker.until_done(100).await?;
    let ids: BTreeSet<&str> = done.iter().map(|done| done.task_id.as_str()).collect();
    assert_eq!(ids.len(), 100);
    bridge.stop().await?;
    assert_eq!(worker.stop().await?.receipt.acked, 100, "no message was stored twice");
    Ok(())
}

#[tokio::test]
async fn messages_that_no_rule_maps_are_dead_letters_with_their_topic() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(mosquitto) = Mosquitto::start(folder.path(), None).await? else { return Ok(()) };
    let env = TestEnv::new().await?;
    let worker = env.worker("any")?.stdout().start().await?;
    let plan = BridgePlan::new(&env, &mosquitto.url()).await?;
    let plan = plan.option("--subscribe", "#").option("--maps", "builtin:zigbee2mqtt");
    let mut sender = Sender::connect(&mosquitto.url()).await?;
    sender.retain("kept/before", "1").await?;
    let bridge = plan.start().await?;
    sender.publish("plant/boiler", "71.5").await?;
    sender.publish("zigbee2mqtt/kitchen", "{").await?;
    sender.publish("plant/large", vec![b'x'; 5 << 20]).await?;
    sender.publish("zigbee2mqtt/kitchen", r#"{"temperature":20.5}"#).await?;
    worker.until_done(1).await?;
    let letters = env.take_all("garenne.dead", 3).await?;
    let seen: Vec<_> = letters
        .iter()
        .map(|letter| {
            let text = |name: &str| letter.text(name);
            (text("garenne-source"), text("garenne-reason"), letter.body.clone())
        })
        .collect();
    let topic = |topic: &str| format!("topic:{topic}");
    assert!(seen.contains(&(topic("plant/boiler"), "unmapped".to_owned(), b"71.5".to_vec())), "{seen:?}");
    assert!(seen.contains(&(topic("zigbee2mqtt/kitchen"), "unmapped".to_owned(), b"{".to_vec())));
    assert!(seen.contains(&(topic("plant/large"), "too-large".to_owned(), Vec::new())));
    assert!(
        letters.iter().all(|letter| letter.text("garenne-worker") == "bridge" && !letter.id().is_empty())
    );
    bridge.until_metric("garenne_mqtt_messages_total", "outcome=\"retained\"", 1.0).await?;
    assert_eq!(bridge.metric("garenne_mqtt_messages_total", "outcome=\"unmapped\"").await?, 2.0);
    bridge.stop().await?;

    // After the map was corrected.
    for letter in letters.iter().filter(|letter| letter.text("garenne-reason") == "unmapped") {
        env.client().publish("garenne.dead", "", letter.properties.clone(), &letter.body).await?;
    }
    let ids: Vec<&str> = letters.iter().map(|letter| letter.id()).collect();
    let replayed = env.try_garenne(&["dead", "replay", "--reason", "unmapped"]).await?;
    assert_eq!(replayed.code, Some(1), "not as tasks");
    let arguments = [&["dead", "show", "--json"][..], &ids].concat();
    let shown = env.garenne(&arguments).await?.stdout;
    assert_eq!(shown.len(), 2, "{shown:?}");
    let lines = folder.path().join("letters.ndjson");
    std::fs::write(&lines, shown.join("\n"))?;
    let map = folder.path().join("corrected.toml");
    std::fs::write(&map, "[[map]]\ntopic = \"plant/+\"\ndevice = \"{1}\"\nmetric = \"level\"\n")?;
    let publish = Program::new("garenne-producer").arg("map").arg("publish").arg(&map);
    let publish = publish.option("--file", &lines).option("--amqp-url", env.vhost().amqp_url());
    let published = publish.env("GARENNE_RETRY__DELAYS", DELAYS).run().await?;
    assert_eq!((published.code, published.stdout.len()), (Some(1), 1), "{:?}", published.stderr);
    assert!(published.stderr.iter().any(|line| line.contains("no rule matches")), "{:?}", published.stderr);
    let done = worker.until_done(2).await?;
    assert_eq!(done[1].output["readings"][0]["device"], "boiler");
    env.garenne(&["dead", "drop", "--yes", "--id", &published.stdout[0]]).await?;
    env.until_queue("garenne.dead", 1, 0).await?;
    Ok(())
}

#[tokio::test]
async fn bridges_share_a_subscription_over_tls_with_client_certificates() -> Result<()> {
    let (env, authority) = (TestEnv::new().await?, Authority::new()?);
    let (server, client) = (authority.sign("127.0.0.1")?, authority.sign("bridge")?);
    let files = [
        ("ca.pem", authority.pem()),
        ("server.pem", server.cert),
        ("server.key", server.key),
        ("client.pem", client.cert),
        ("client.key", client.key),
    ];
    for (name, content) in files {
        std::fs::write(env.folder().join(name), content)?;
    }
    let file = |name: &str| env.folder().join(name).display().to_string();
    let tls = format!(
        "cafile {}\ncertfile {}\nkeyfile {}\nrequire_certificate true",
        file("ca.pem"),
        file("server.pem"),
        file("server.key")
    );
    let Some(mosquitto) = Mosquitto::start(env.folder(), Some(&tls)).await? else { return Ok(()) };
    let worker = env.worker("any")?.stdout().start().await?;
    let plan = BridgePlan::new(&env, &mosquitto.tls_url()).await?.option("--maps", "builtin:zigbee2mqtt");
    let plan = plan.option("--subscribe", "$share/garenne/zigbee2mqtt/#").option("--protocol", "5");
    let plan = plan.option("--ca", file("ca.pem")).ungrouped();
    let with = plan.clone().option("--cert", file("client.pem")).option("--key", file("client.key"));
    let first = with.clone().option("--client-id", "first").start().await?;
    let second = with.option("--client-id", "second").start().await?;
    let mut device = Device::new(mosquitto.url());
    device.send_many(2 * MESSAGES).await?;
    let done = worker.until_done(2 * MESSAGES).await?;
    let ids: BTreeSet<&str> = done.iter().map(|done| done.task_id.as_str()).collect();
    assert_eq!(ids.len(), 2 * MESSAGES);
    let (name, mapped) = ("garenne_mqtt_messages_total", "outcome=\"mapped\"");
    let (of_first, of_second) = (first.metric(name, mapped).await?, second.metric(name, mapped).await?);
    assert!(of_first > 0.0 && of_second > 0.0, "{of_first} and {of_second}");
    first.stop().await?;
    second.stop().await?;
    assert_eq!(worker.stop().await?.receipt.acked, 2 * MESSAGES as u64);

    let without = plan.env("GARENNE_CONNECT_TIMEOUT", "1s").run().await?;
    assert_eq!(without.code, Some(69), "{:?}", without.stderr);
    Ok(())
}
