//! All that a publisher of MQTT 3.1.1 and 5 can use, with paho, through Mosquitto and the bridge.

use std::{collections::BTreeMap, env, process::Command};

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    mqtt::{BridgePlan, Mosquitto},
    suite,
    test_env::TestEnv,
};

/// Publishes with the script `clients/publish_mqtt.py`.
fn publish(port: u16, version: &str) -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/publish_mqtt.py");
    // Debian installs paho for its own Python, which is not always the first one in PATH.
    let python = env::var("GARENNE_TEST_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned());
    let output = Command::new(&python).arg(script).arg(port.to_string()).arg(version).output();
    let output = output.with_context(|| format!("{python} {script}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Publishes with a version of the protocol to a bridge of the same version.
async fn every_message_arrives(version: &str) -> Result<()> {
    if !suite::is_full() {
        suite::leave_out("paho is used by `./dev test --full` only");
        return Ok(());
    }
    if env::var("GARENNE_TEST_WITHOUT").is_ok_and(|list| list.split(',').any(|name| name.trim() == "paho")) {
        suite::leave_out("paho is not installed (apt-get install python3-paho-mqtt)");
        return Ok(());
    }
    let env = TestEnv::new().await?;
    let Some(mosquitto) = Mosquitto::start(env.folder(), None).await? else { return Ok(()) };
    let worker = env.worker("any")?.stdout().start().await?;
    let plan = BridgePlan::new(&env, &mosquitto.url()).await?.option("--maps", "builtin:zigbee2mqtt");
    let plan = plan.option("--subscribe", "#").option("--protocol", version).ungrouped();
    let bridge = plan.start().await?;
    let (port, version) = (mosquitto.port(), version.to_owned());
    let is_five = version == "5";
    tokio::task::spawn_blocking(move || publish(port, &version)).await??;

    let mut expected = BTreeMap::from(
        [(0, "qos"), (1, "qos"), (2, "qos"), (3, "retained"), (6, "müsli/Küche"), (10, "will")]
            .map(|(number, device)| (number, device.to_owned())),
    );
    expected.insert(4, "d".repeat(128));
    if is_five {
        expected.extend([(7, "properties"), (8, "alias"), (9, "alias")].map(|(n, it)| (n, it.to_owned())));
    }
    let done = worker.until_done(expected.len()).await?;
    let mut arrived = BTreeMap::new();
    for one in &done {
        // User properties are no headers of the task.
        assert_eq!(one.attempt, 1);
        let reading = &one.output["readings"][0];
        let number = reading["value"].as_f64().with_context(|| one.output.to_string())? as u64;
        arrived.insert(number, reading["device"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(arrived, expected);

    // The map allows messages without a payload, which have no reading.
    assert_eq!(bridge.metric("garenne_mqtt_messages_total", "outcome=\"skipped\"").await?, 2.0);
    // A device name above 128 bytes, and topics without a rule.
    let letters = env.take_all("garenne.dead", if is_five { 3 } else { 2 }).await?;
    let seen: Vec<_> = letters.iter().map(|it| (it.text("garenne-source"), it.body.clone())).collect();
    let all_bytes: Vec<u8> = (0..=255).collect();
    assert!(seen.contains(&("topic:plant/bytes".to_owned(), all_bytes)), "{seen:?}");
    // Its topic is too long for a header that readers keep, so it is found by its payload.
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

#[tokio::test]
async fn messages_of_paho_with_mqtt_3_1_1_arrive() -> Result<()> {
    every_message_arrives("3.1.1").await
}

#[tokio::test]
async fn messages_of_paho_with_mqtt_5_arrive() -> Result<()> {
    every_message_arrives("5").await
}
