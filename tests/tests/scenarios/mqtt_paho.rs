//! All that a publisher of MQTT 3.1.1 and 5 can use, with paho, through Mosquitto and the bridge, and through RabbitMQ's plugin.

use std::{collections::BTreeMap, env, process::Command};

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    mqtt::{BridgePlan, Mosquitto, with_plugin},
    suite,
    test_env::TestEnv,
    vhost::Rights,
};
use serde_json::{Value, json};

/// Publishes with the script `clients/publish_mqtt.py`, and returns what it prints.
async fn publish(port: u16, version: &str, login: &[String]) -> Result<Vec<Value>> {
    let (version, login) = (version.to_owned(), login.to_vec());
    tokio::task::spawn_blocking(move || run_script(port, &version, &login)).await?
}

fn run_script(port: u16, version: &str, login: &[String]) -> Result<Vec<Value>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/publish_mqtt.py");
    // Debian installs paho for its own Python, which is not always the first one in PATH.
    let python = env::var("GARENNE_TEST_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned());
    let output = Command::new(&python).arg(script).arg(port.to_string()).arg(version).args(login).output();
    let output = output.with_context(|| format!("{python} {script}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout)?;
    printed.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// Whether the test runs. It is left out except in the full suite with paho.
fn is_wanted() -> bool {
    if !suite::is_full() {
        suite::leave_out("paho is used by `./dev test --full` only");
        return false;
    }
    let without = env::var("GARENNE_TEST_WITHOUT");
    let is_missing = without.is_ok_and(|list| list.split(',').any(|name| name.trim() == "paho"));
    if is_missing {
        suite::leave_out("paho is not installed (apt-get install python3-paho-mqtt)");
    }
    !is_missing
}

/// The devices by the numbers of their messages that arrive by every broker.
fn devices(version: &str) -> BTreeMap<u64, String> {
    let mut devices = BTreeMap::from(
        [(0, "qos"), (1, "qos"), (3, "retained"), (6, "müsli/Küche"), (10, "will")]
            .map(|(number, device)| (number, device.to_owned())),
    );
    devices.insert(4, "d".repeat(128));
    if version == "5" {
        devices.extend([(7, "properties"), (8, "alias"), (9, "alias")].map(|(n, it)| (n, it.to_owned())));
    }
    devices
}

/// The number of the message that a reading is of, and its device.
fn arrived(reading: &Value) -> Result<(u64, String)> {
    let number = reading["value"].as_f64().with_context(|| reading.to_string())? as u64;
    Ok((number, reading["device"].as_str().unwrap_or_default().to_owned()))
}

/// Publishes with a version of the protocol to a bridge of the same version.
async fn every_message_arrives(version: &str) -> Result<()> {
    if !is_wanted() {
        return Ok(());
    }
    let env = TestEnv::new().await?;
    let Some(mosquitto) = Mosquitto::start(env.folder(), None).await? else { return Ok(()) };
    let worker = env.worker("any")?.stdout().start().await?;
    let plan = BridgePlan::new(&env, &mosquitto.url()).await?.option("--maps", "builtin:zigbee2mqtt");
    let plan = plan.option("--subscribe", "#").option("--protocol", version).ungrouped();
    let bridge = plan.start().await?;
    let is_five = version == "5";
    publish(mosquitto.port(), version, &[]).await?;

    let mut expected = devices(version);
    expected.insert(2, "qos".to_owned());
    let done = worker.until_done(expected.len()).await?;
    // User properties are no headers of the task.
    assert!(done.iter().all(|one| one.attempt == 1), "{done:?}");
    let readings = done.iter().map(|one| arrived(&one.output["readings"][0]));
    assert_eq!(readings.collect::<Result<BTreeMap<_, _>>>()?, expected);

    // The map allows messages without a payload, which have no reading.
    assert_eq!(bridge.metric("garenne_mqtt_messages_total", "outcome=\"skipped\"").await?, 2.0);
    // A device name above 128 bytes, and topics without a rule.
    let letters = env.take_all("garenne.dead", if is_five { 3 } else { 2 }).await?;
    let seen: Vec<_> = letters.iter().map(|it| (it.text("garenne-source"), it.body.clone())).collect();
    let all_bytes: Vec<u8> = (0..=255).collect();
    assert!(seen.contains(&("topic:plant/bytes".to_owned(), all_bytes)), "{seen:?}");
    // Its topic is cut in the header, so it is found by its payload.
    let long = seen.iter().filter(|(_, body)| String::from_utf8_lossy(body).contains("\"number\": 5,"));
    assert_eq!(long.count(), 1);
    if is_five {
        let described = letters.iter().find(|it| it.text("garenne-source") == "topic:plant/properties");
        let described = described.context("a letter with properties")?;
        let content_type = described.properties.content_type().as_ref().map(|it| it.as_str().to_owned());
        assert_eq!((content_type.as_deref(), &described.body[..]), (Some("application/json"), &b"71.5"[..]));
        ensure!(described.text("garenne-attempt") != "99", "a user property became a header");
    }
    bridge.stop().await?;

    // A new session gets the retained message, which is no news.
    let second = plan.env("GARENNE_MQTT__CLIENT_ID", "second").start().await?;
    if !is_five {
        second.until_metric("garenne_mqtt_messages_total", "outcome=\"retained\"", 1.0).await?;
    }
    second.stop().await?;
    assert_eq!(worker.stop().await?.receipt.acked, expected.len() as u64);
    Ok(())
}

/// Publishes with a version of the protocol to RabbitMQ's plugin, as a user with the rights of a device.
async fn what_the_plugin_accepts_arrives(version: &str) -> Result<()> {
    if !is_wanted() {
        return Ok(());
    }
    let Some(env) = with_plugin().await? else { return Ok(()) };
    let worker = env.worker("any")?.env("GARENNE_LANES__MQTT__MAPS", "builtin:zigbee2mqtt").stdout();
    let worker = worker.start().await?;
    let vhost = env.vhost();
    let rights = Rights { configure: "^$", write: r"^garenne\.mqtt$", read: "^$" };
    vhost.user_url("device", rights).await?;
    let user = format!("device-{}", vhost.name());
    let topics = json!({"exchange": "garenne.mqtt", "write": r"^[^.]{1,20}\..{1,140}$", "read": "^$"});
    vhost.broker().management().put(&["topic-permissions", vhost.name(), &user], &topics).await?;
    let url = vhost.broker().mqtt_url().context("MQTT is enabled")?;
    let port = url.rsplit(':').next().context("a port")?.parse()?;
    let answers = publish(port, version, &[format!("{}:{user}", vhost.name()), user]).await?;
    // RabbitMQ takes QoS 2 of MQTT 3.1.1 as QoS 1. It closes the connection for QoS 2 of MQTT 5, and for a topic that its
    // user may not publish.
    let of_qos_2 = if version == "5" { "disconnected" } else { "acknowledged" };
    let expected = [json!({"number": 2, "answer": of_qos_2}), json!({"number": 5, "answer": "disconnected"})];
    assert_eq!(answers, expected);

    // Each message is mapped, and each reading is another task. The message without a payload has none.
    let mut expected = devices(version);
    if of_qos_2 == "acknowledged" {
        expected.insert(2, "qos".to_owned());
    }
    let done = worker.until_done(2 * expected.len() + 1).await?;
    assert!(done.iter().all(|one| one.attempt == 1), "{done:?}");
    let readings = done.iter().filter(|one| one.kind == "reading.process");
    let readings: Vec<_> = readings.map(|one| arrived(&one.output["readings"][0])).collect::<Result<_>>()?;
    assert_eq!(readings.len(), expected.len(), "each arrives once: {readings:?}");
    assert_eq!(BTreeMap::from_iter(readings), expected);

    let letters = env.take_all("garenne.dead", if version == "5" { 2 } else { 1 }).await?;
    let mut seen: Vec<_> = letters.iter().map(|it| (it.text("garenne-source"), it.body.clone())).collect();
    seen.sort();
    let mut unmapped = vec![("topic:plant/bytes".to_owned(), (0..=255).collect::<Vec<u8>>())];
    if version == "5" {
        unmapped.push(("topic:plant/properties".to_owned(), b"71.5".to_vec()));
    }
    assert_eq!(seen, unmapped);
    assert!(letters.iter().all(|it| it.text("garenne-attempt") != "99"), "a user property became a header");
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn messages_of_paho_with_mqtt_3_1_1_arrive_by_the_plugin() -> Result<()> {
    what_the_plugin_accepts_arrives("3.1.1").await
}

#[tokio::test]
async fn messages_of_paho_with_mqtt_5_arrive_by_the_plugin() -> Result<()> {
    what_the_plugin_accepts_arrives("5").await
}

#[tokio::test]
async fn messages_of_paho_with_mqtt_3_1_1_arrive() -> Result<()> {
    every_message_arrives("3.1.1").await
}

#[tokio::test]
async fn messages_of_paho_with_mqtt_5_arrive() -> Result<()> {
    every_message_arrives("5").await
}
