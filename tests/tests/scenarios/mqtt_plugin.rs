//! RabbitMQ's own MQTT plugin: devices publish to it, and a lane with maps makes readings of their messages.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use garenne_tests::harness::{
    mqtt::{MosquittoPub, with_plugin},
    postgres::Postgres,
    process::Program,
    test_env::{DELAYS, TestEnv},
    vhost::Rights,
    wait::{Seen, eventually},
    worker::WorkerPlan,
};
use serde_json::{Value, json};

const QOS_1: [&str; 2] = ["-q", "1"];

/// A broker with the plugin and its publisher. `None` if the test is left out.
async fn environment() -> Result<Option<(TestEnv, MosquittoPub)>> {
    let Some(env) = with_plugin().await? else { return Ok(None) };
    Ok(MosquittoPub::find(&env)?.map(|mosquitto| (env, mosquitto)))
}

/// A worker with the lane `mqtt`, whose map of numbers is in the folder of the environment.
fn worker(env: &TestEnv, name: &str, numbers: &str) -> Result<WorkerPlan> {
    let map = env.folder().join("numbers.toml");
    std::fs::write(
        &map,
        format!("[[map]]\ntopic = \"{numbers}\"\ndevice = \"{{1}}\"\nmetric = \"number\"\n"),
    )?;
    let maps = format!("builtin:zigbee2mqtt,{}", map.display());
    Ok(env.worker(name)?.env("GARENNE_LANES__MQTT__MAPS", maps))
}

/// A message of a Zigbee device with a time.
fn zigbee(second: i64) -> String {
    format!(r#"{{"temperature":20.5,"linkquality":80,"last_seen":{}}}"#, second * 1000)
}

/// The id of the dead letter of a message with this topic, and what `garenne dead show` prints of it.
async fn letter_of(env: &TestEnv, topic: &str, letters: &[Value]) -> Result<(String, String)> {
    for letter in letters {
        let id = letter["id"].as_str().context("an id")?;
        let shown = env.garenne(&["dead", "show", "--json", id]).await?.stdout.join("");
        let read: Value = serde_json::from_str(&shown)?;
        if read["headers"]["garenne-source"] == format!("topic:{topic}") {
            return Ok((id.to_owned(), shown));
        }
    }
    anyhow::bail!("no letter of {topic}")
}

#[tokio::test]
async fn messages_of_devices_become_readings_and_none_decides_more_than_its_payload() -> Result<()> {
    let Some((env, mosquitto)) = environment().await? else { return Ok(()) };
    let plan = worker(&env, "first", "n/+")?.stdout();
    let first = plan.start().await?;

    // User properties of a device that try to pass for those of a worker.
    let forged = [
        ("garenne-attempt", "99"),
        ("garenne-not-before", "4102444800000"),
        ("garenne-delay-ms", "600000"),
        ("garenne-source", "topic:n/forged"),
        ("garenne-lane", "slow"),
        ("garenne-reason", "rejected"),
        ("garenne-quarantine-runs", "9"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("x-death", "x"),
        ("CC", "garenne.tasks.slow"),
    ];
    let properties = forged.iter().flat_map(|(name, value)| ["-D", "publish", "user-property", name, value]);
    let batch = ["-D", "publish", "content-type", "application/vnd.garenne.batch+json"];
    let others = ["-D", "publish", "correlation-data", "c", "-D", "publish", "response-topic", "n/answer"];
    let hostile: Vec<&str> = QOS_1.into_iter().chain(properties).chain(batch).chain(others).collect();

    mosquitto.publish("311", "zigbee2mqtt/floor/kitchen", &zigbee(1_790_000_000), &QOS_1).await?;
    mosquitto.publish("5", "n/volatile", "1", &["-q", "0"]).await?;
    mosquitto.publish("311", "n/retained", "2", &["-q", "1", "-r"]).await?;
    mosquitto.publish("5", "n/hostile", "3", &hostile).await?;
    // A dot in a topic is read as a slash.
    mosquitto.publish("5", "n.dotted", "4", &QOS_1).await?;
    let done = first.until_done(11).await?;
    let of_kind = |kind: &str| done.iter().filter(|done| done.kind == kind).collect::<Vec<_>>();
    let devices: BTreeSet<String> = of_kind("reading.process")
        .iter()
        .map(|done| done.output["readings"][0]["device"].as_str().unwrap_or_default().to_owned())
        .collect();
    let expected = ["dotted", "floor/kitchen", "hostile", "retained", "volatile"];
    assert_eq!(devices, expected.into_iter().map(str::to_owned).collect());
    let mapped = of_kind("message.map");
    assert_eq!(mapped.len(), 5);
    assert!(mapped.iter().all(|done| done.attempt == 1), "{mapped:?}");
    let sources: BTreeSet<&str> = mapped.iter().filter_map(|done| done.output["source"].as_str()).collect();
    assert!(sources.contains("topic:n/hostile") && sources.contains("topic:n/dotted"), "{sources:?}");
    let ignored = "garenne_headers_ignored_total";
    assert_eq!(first.metric(ignored, &["header=\"garenne-attempt\""]).await?, 1.0);
    assert_eq!(first.metric(ignored, &["header=\"traceparent\""]).await?, 1.0);

    // No map takes these. Each becomes a dead letter that says why.
    let unmapped = [("plant/boiler", "71.5"), ("n/a/b", "1"), ("zigbee2mqtt/x", "{"), ("n/empty", "")];
    for (topic, payload) in unmapped {
        mosquitto.publish("311", topic, payload, &QOS_1).await?;
    }
    let binary = env.folder().join("binary");
    std::fs::write(&binary, b"\x1f\x8b\x08\x00\xff")?;
    let file = ["-q", "1", "-f", binary.to_str().context("a path")?];
    assert_eq!(mosquitto.run("5", "n/binary", &file).await?.code, Some(0));
    env.until_queue("garenne.dead", 5, 0).await?;
    let list = env.garenne(&["dead", "list", "--json"]).await?.stdout;
    let letters: Vec<Value> = list.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
    let field = |letter: &Value, name: &str| letter[name].as_str().unwrap_or_default().to_owned();
    for letter in &letters {
        assert_eq!(
            (field(letter, "reason"), field(letter, "kind")),
            ("unmapped".into(), "message.map".into())
        );
        assert_eq!((field(letter, "lane"), field(letter, "worker")), ("mqtt".into(), "first".into()));
    }
    let errors: BTreeSet<String> = letters.iter().map(|letter| field(letter, "error")).collect();
    for expected in ["no rule matches", "rule 1: no value is a number"] {
        assert!(errors.contains(expected), "{errors:?}");
    }
    let alone = first.stop().await?;
    assert_eq!((alone.receipt.dead, alone.receipt.lost_settlements), (5, 0));

    // The map was corrected: the lane maps the letters again, or `map publish` does.
    let corrected = worker(&env, "second", "+/+")?.stdout();
    let second = corrected.start().await?;
    let (boiler, shown) = letter_of(&env, "plant/boiler", &letters).await?;
    let replay = ["dead", "replay", "--id", &boiler];
    let without = env.try_garenne(&replay).await?;
    assert_eq!(without.code, Some(1), "the console does not know the lane: {:?}", without.stderr);
    let operator = Program::garenne(env.operator_url(), &replay);
    operator.env("GARENNE_LANES__MQTT__MAPS", "builtin:zigbee2mqtt").succeed().await?;
    let done = second.until_done(2).await?;
    let reading = done.iter().find(|done| done.kind == "reading.process").context("a reading")?;
    assert_eq!(reading.output["readings"][0]["device"], "plant");
    // The same letter by `map publish` is the same reading.
    let letter = env.folder().join("letter.ndjson");
    std::fs::write(&letter, shown)?;
    let publish = Program::new("garenne-producer").arg("map").arg("publish");
    let publish = publish.arg(env.folder().join("numbers.toml")).option("--file", &letter);
    let publish = publish.option("--amqp-url", env.vhost().amqp_url());
    let published = publish.env("GARENNE_RETRY__DELAYS", DELAYS).succeed().await?;
    assert_eq!(published.stdout, [boiler]);
    let again = second.until_done(3).await?;
    assert_eq!((&again[2].task_id, &again[2].output), (&reading.task_id, &reading.output));
    second.stop().await?;
    Ok(())
}

#[tokio::test]
async fn every_accepted_message_is_stored_when_workers_are_killed() -> Result<()> {
    const MESSAGES: i64 = 60;
    let Some((env, mosquitto)) = environment().await? else { return Ok(()) };
    let database = Postgres::shared().await?.database().await?;
    let plan = |name: &str| -> Result<WorkerPlan> {
        let plan = worker(&env, name, "n/+")?.option("--sink", "postgres");
        Ok(plan.option("--postgres-url", database.url()))
    };
    let mut victim = plan("victim-0")?.start().await?;
    let client = database.connect().await?;
    let count = async |device: &str| -> Result<(i64, i64)> {
        let query = "SELECT count(*), count(DISTINCT value) FROM garenne_readings \
                     WHERE device = $1 AND metric IN ('temperature', 'number')";
        let row = client.query_one(query, &[&device]).await?;
        Ok((row.get(0), row.get(1)))
    };
    for second in 0..MESSAGES {
        let kills = second % 20 == 10;
        if kills {
            // Until the worker is killed, no reading can be stored and acked, so that it holds some then.
            client.batch_execute("BEGIN; LOCK TABLE garenne_readings IN ACCESS EXCLUSIVE MODE").await?;
        }
        let payload =
            format!(r#"{{"temperature":{second},"last_seen":{}}}"#, (1_790_000_000 + second) * 1000);
        mosquitto
            .publish(if second % 2 == 0 { "311" } else { "5" }, "zigbee2mqtt/kitchen", &payload, &QOS_1)
            .await?;
        // Its time is that of its arrival.
        mosquitto.publish("311", "n/untimed", &second.to_string(), &QOS_1).await?;
        if kills {
            env.until_unacked_of(&victim, 2).await?;
            victim.kill().await?;
            client.batch_execute("ROLLBACK").await?;
            victim = plan(&format!("victim-{second}"))?.start().await?;
        }
    }
    for device in ["kitchen", "untimed"] {
        eventually(format!("every message of {device} is stored"), async || {
            let (_, distinct) = count(device).await?;
            Ok(Seen::when(distinct == MESSAGES, distinct))
        })
        .await?;
    }
    victim.stop().await?;
    assert_eq!(count("kitchen").await?, (MESSAGES, MESSAGES), "a time makes a repetition harmless");
    assert!(count("untimed").await?.0 >= MESSAGES);
    env.is_empty("garenne.dead").await?;
    Ok(())
}

#[tokio::test]
async fn a_message_that_the_broker_cannot_deliver_stops_its_lane_only_and_rights_keep_it_away() -> Result<()>
{
    let Some((env, mosquitto)) = environment().await? else { return Ok(()) };
    let worker = worker(&env, "any", "+/+")?.stdout().start().await?;
    let (vhost, management) = (env.vhost(), env.vhost().broker().management());
    // Each device has a user, who may publish below its name, topics that AMQP clients can read.
    let rights = Rights { configure: "^$", write: "^garenne\\.mqtt$", read: "^$" };
    vhost.user_url("boiler", rights).await?;
    let user = format!("boiler-{}", vhost.name());
    let topics = json!({"exchange": "garenne.mqtt", "write": "^boiler\\.[^.]{1,100}$", "read": "^$"});
    management.put(&["topic-permissions", vhost.name(), &user], &topics).await?;
    let boiler = mosquitto.clone().user(&format!("{}:{user}", vhost.name()), &user);
    let long = format!("boiler/{}", "x".repeat(260));
    boiler.publish("5", "boiler/level", "1", &QOS_1).await?;
    worker.until_done(2).await?;
    for version in ["311", "5"] {
        for topic in [&long, "kitchen/level"] {
            let refused = boiler.run(version, topic, &["-q", "1", "-m", "1"]).await?;
            assert!(refused.code != Some(0) || !refused.stderr.is_empty(), "{version} {topic}");
        }
    }
    env.is_empty("garenne.tasks.mqtt").await?;

    // Without such rights: RabbitMQ closes the connection that should receive the message.
    mosquitto.publish("5", &long, "1", &QOS_1).await?;
    worker
        .until_not_ready_for("the queue may have a message with a routing key of more than 255 bytes")
        .await?;
    env.publish("bench.noop", &json!({}), "task", 20).await?;
    worker.until_done(22).await?;
    assert_eq!(worker.metric("garenne_connection_up", &["role=\"consume\""]).await?, 1.0);
    assert_eq!(worker.find_metric("garenne_reconnects_total", &["role=\"consume\""]).await?, None);
    // The management API can take it.
    let queue = ["queues", vhost.name(), "garenne.tasks.mqtt", "get"];
    let get = json!({"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"});
    let taken = eventually("the message is taken between two attempts to deliver it", async || {
        let taken: Vec<Value> = management.post(&queue, &get).await?;
        Ok(taken.into_iter().next().map_or(Seen::Other("none ready".to_owned()), Seen::Wanted))
    });
    assert_eq!(taken.await?["payload"], "1");
    mosquitto.publish("5", "kitchen/level", "2", &QOS_1).await?;
    worker.until_done(24).await?;
    worker.stop().await?;
    Ok(())
}
