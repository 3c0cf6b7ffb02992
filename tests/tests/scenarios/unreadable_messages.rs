//! Messages that the client library cannot parse become dead letters, and no other task is affected.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    authority::Authority,
    broker::{Broker, BrokerOptions, BrokerVersion, Tls},
    engine::{self, Mode},
    raw_amqp::{Outcome, Property, RawClient, RawMessage, Received, Table},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::Worker,
};
use serde_json::{Value, json};

/// Maximum time from publishing a message to its dead letter.
const LIMIT: Duration = Duration::from_secs(60);

/// Good tasks before and after each bad message.
const AROUND: usize = 100;

/// A message that lapin cannot parse, and a part of the error that its dead letter must have.
struct Bad {
    name: &'static str,
    message: RawMessage,
    error: &'static str,
}

fn bad_messages(frame_max: usize) -> Vec<Bad> {
    let bad = |name: &'static str, message: RawMessage, error: &'static str| Bad {
        name,
        message: message.body(format!("{{\"bad\":\"{name}\"}}")),
        error,
    };
    let task = |id: &str| RawMessage::task("bench.noop", id, "");
    let text = |property| task("t").property(property, b"caf\xe9");
    let named = |table: Table| task("t").headers(&table);
    let aside = Table::new().text("aside", "kept");
    let mut all = vec![
        bad("message id", text(Property::MessageId), "message_id is not UTF-8"),
        bad("app id", text(Property::AppId), "app_id is not UTF-8"),
        bad("type", text(Property::Type), "type is not UTF-8"),
        bad("content type", text(Property::ContentType), "content_type is not UTF-8"),
        bad("reply to", text(Property::ReplyTo), "reply_to is not UTF-8"),
        bad("header name", named(Table::new().text(b"caf\xe9", "x")), "a header name is not UTF-8"),
        bad("inner name", named(aside.clone().table("in", &Table::new().text(b"\xff", ""))), "not UTF-8"),
        bad("tables", named(Table::nested_tables(3_000)), "nested more than 32 levels"),
        bad("arrays", named(Table::nested_arrays(3_000)), "nested more than 32 levels"),
        bad("300 tables", named(Table::nested_tables(300)), "nested more than 32 levels"),
        // The broker accepts frames of eight bytes more than `frame_max`.
        bad("frame", task("t").body("12345678901234").padded_to(&aside, frame_max + 8), "frame_max is"),
        bad(
            "routing key",
            RawMessage::to("garenne.tasks", b"bench.no\xf6p").property(Property::DeliveryMode, [2]),
            "the routing key is not UTF-8",
        ),
        // With the headers that the broker adds when it dead-letters the message, the frame is too large.
        bad(
            "retried",
            RawMessage::to("", "garenne.retry.fast.200ms")
                .property(Property::DeliveryMode, [2])
                .property(Property::Type, "bench.noop")
                .padded_to(&aside, frame_max - 72),
            "frame_max is",
        ),
    ];
    let mut large = bad("several body frames", text(Property::CorrelationId), "correlation_id is not UTF-8");
    large.message = large.message.body(vec![0xCE; 300_000]);
    all.push(large);
    all
}

/// Takes the next dead letter.
async fn letter(raw: &mut RawClient) -> Result<Received> {
    let mut found = None;
    eventually("a dead letter", async || {
        found = raw.get("garenne.dead").await?;
        Ok(Seen::when(found.is_some(), "none"))
    })
    .await?;
    found.context("a dead letter")
}

fn check(letter: &Received, bad: &Bad) -> Result<()> {
    let (name, reason) = (bad.name, letter.text("garenne-reason"));
    let error = letter.text("garenne-error").unwrap_or_default();
    ensure!(reason == Some("malformed") && error.contains(bad.error), "{name}: {reason:?}, {error}");
    ensure!(letter.body == bad.message.body, "{name}: the body differs, it has {} bytes", letter.body.len());
    // The header that marks the message is internal to the worker.
    ensure!(letter.field("garenne-unreadable")?.is_none(), "{name}: the internal header was published");
    Ok(())
}

async fn sum(workers: &[Worker], name: &str, labels: &[&str]) -> Result<f64> {
    let mut sum = 0.0;
    for worker in workers {
        sum += worker.metric(name, labels).await?;
    }
    Ok(sum)
}

/// Waits until the workers have done exactly these tasks, each once.
async fn until_done(workers: &[Worker], ids: &BTreeSet<String>) -> Result<()> {
    eventually(format!("{} tasks done", ids.len()), async || {
        let mut done = Vec::new();
        for worker in workers {
            done.extend(worker.done()?.into_iter().map(|done| done.task_id));
        }
        let all = done.iter().cloned().collect::<BTreeSet<_>>();
        let shown = format!("{} different tasks in {} executions", all.len(), done.len());
        Ok(if done.len() > all.len() || !all.is_subset(ids) {
            Seen::Never(shown)
        } else {
            Seen::when(all == *ids, shown)
        })
    })
    .await
}

/// Checks that the workers lost no connection, and that each stops cleanly.
async fn stop_cleanly(workers: Vec<Worker>) -> Result<()> {
    for worker in workers {
        let lost = worker.metric("garenne_reconnects_total", &["role=\"consume\""]).await.unwrap_or(0.0);
        ensure!(lost == 0.0, "{} lost {lost} connections", worker.name());
        let stopped = worker.stop().await?;
        ensure!(stopped.code == 0 && stopped.receipt.lost_settlements == 0, "{:?}", stopped.receipt);
    }
    Ok(())
}

#[tokio::test]
async fn unreadable_messages_become_dead_letters_and_all_good_tasks_are_done() -> Result<()> {
    let env = TestEnv::new().await?;
    let mut workers = Vec::new();
    for name in ["a", "b"] {
        let plan = env.worker(name)?.stdout().lane("fast:prefetch=50,concurrency=2..2");
        workers.push(plan.start().await?);
    }
    let mut raw = RawClient::connect(&env.vhost().amqp_url()).await?;
    let mut good = BTreeSet::new();
    let bad = bad_messages(raw.frame_max());
    for (n, bad) in bad.iter().enumerate() {
        good.extend(env.publish("bench.noop", &json!({}), &format!("before-{n}"), AROUND).await?);
        let began = Instant::now();
        let outcome = raw.publish(&bad.message).await?;
        ensure!(outcome == Outcome::Confirmed, "{}: {outcome:?}", bad.name);
        good.extend(env.publish("bench.noop", &json!({}), &format!("after-{n}"), AROUND).await?);
        let letter = letter(&mut raw).await.context(bad.name)?;
        check(&letter, bad)?;
        ensure!(began.elapsed() < LIMIT, "{}: dead after {:?}", bad.name, began.elapsed());
        if bad.name == "inner name" {
            ensure!(letter.text("aside") == Some("kept"), "a readable header was not kept: {letter:?}");
        }
    }
    until_done(&workers, &good).await?;
    let counted = sum(&workers, "garenne_unreadable_total", &["queue=\"garenne.tasks.fast\""]).await?;
    ensure!(counted == bad.len() as f64, "{counted} of {} counted", bad.len());
    env.is_empty("garenne.dead").await?;
    stop_cleanly(workers).await
}

#[tokio::test]
async fn unreadable_messages_of_a_killed_worker_do_not_affect_other_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = |name: &str| -> Result<_> {
        Ok(env.worker(name)?.stdout().lane("fast:prefetch=200,concurrency=2..2"))
    };
    // Declares the topology, and is killed while it holds a prefetch.
    let first = plan("first")?.start().await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "long", 2).await?;
    first.until_holds("fast", 2, 0).await?;
    let mut raw = RawClient::connect(&env.vhost().amqp_url()).await?;
    let bad = bad_messages(raw.frame_max());
    for (n, bad) in bad.iter().filter(|bad| bad.message.exchange == b"garenne.tasks").enumerate() {
        env.publish("bench.noop", &json!({}), &format!("good-{n}"), 20).await?;
        ensure!(raw.publish(&bad.message).await? == Outcome::Confirmed, "{}", bad.name);
    }
    first.kill().await?;
    // The running tasks are redelivered too; they are stopped so that they do not occupy the workers.
    env.garenne(&["task", "stop", "long-0", "long-1"]).await?;
    let workers = vec![plan("second")?.start().await?, plan("third")?.start().await?];
    let expected = bad.iter().filter(|bad| bad.message.exchange == b"garenne.tasks").count();
    // If the first worker is killed between a dead letter's confirm and the ack of the original, another worker
    // publishes a second letter. No worker publishes two.
    let mut letters = BTreeSet::new();
    let mut bodies = BTreeSet::new();
    while bodies.len() < expected + 2 {
        let letter = letter(&mut raw).await?;
        let reason = letter.text("garenne-reason").context("a reason")?;
        let body = letter.body.clone();
        ensure!(reason == if body.starts_with(b"{\"ms\"") { "stopped" } else { "malformed" }, "{letter:?}");
        // The two running tasks have the same body, so their ids are compared.
        let id = letter.property(Property::MessageId)?.unwrap_or_default().to_vec();
        let key = if reason == "stopped" { id } else { body };
        let by_first = letter.text("garenne-worker") == Some("first");
        ensure!(letters.insert((key.clone(), by_first)), "a worker published two letters: {letter:?}");
        bodies.insert(key);
    }
    let good = (0..expected).flat_map(|n| (0..20).map(move |m| format!("good-{n}-{m}"))).collect();
    eventually("all good tasks done", async || {
        let mut done = BTreeSet::new();
        for worker in &workers {
            done.extend(worker.done()?.into_iter().map(|done| done.task_id));
        }
        Ok(Seen::when(done.is_superset(&good), done.len()))
    })
    .await?;
    while let Some(letter) = raw.get("garenne.dead").await? {
        let by_first = letter.text("garenne-worker") == Some("first");
        ensure!(
            letters.insert((letter.body.clone(), by_first)),
            "a worker published two letters: {letter:?}"
        );
        ensure!(bodies.contains(&letter.body), "an unexpected letter: {letter:?}");
    }
    stop_cleanly(workers).await
}

#[tokio::test]
async fn unreadable_stream_records_and_commands_are_skipped_and_counted() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("a")?.stdout().start().await?;
    let mut raw = RawClient::connect(&env.vhost().amqp_url()).await?;
    let bad = |exchange: &str, key: &str| {
        RawMessage::to(exchange, key)
            .property(Property::DeliveryMode, [2])
            .property(Property::AppId, b"\xff")
            .body(r#"{"command":"shutdown"}"#)
    };
    let messages = [
        (bad("", "garenne.directives"), "garenne.directives"),
        (bad("", "garenne.lifecycle"), "garenne.lifecycle"),
        (bad("garenne.control", "workers"), "garenne.worker.a"),
        (bad("", "garenne.quarantine"), "garenne.quarantine"),
    ];
    for (message, queue) in &messages {
        ensure!(raw.publish(message).await? == Outcome::Confirmed, "{queue}");
        worker.until_metric("garenne_unreadable_total", &[&format!("queue=\"{queue}\"")], 1.0).await?;
    }
    let letter = letter(&mut raw).await?;
    ensure!(letter.text("garenne-reason") == Some("malformed"), "{letter:?}");
    ensure!(letter.text("garenne-error").is_some_and(|it| it.contains("app_id is not UTF-8")), "{letter:?}");
    // Reading the streams continues: later directives apply, also on a worker that reads them from the beginning.
    env.garenne(&["task", "stop", "unwanted-0"]).await?;
    let second = env.worker("b")?.stdout().start().await?;
    second.until_metric("garenne_unreadable_total", &["queue=\"garenne.directives\""], 1.0).await?;
    env.publish("bench.noop", &json!({}), "unwanted", 1).await?;
    env.publish("bench.noop", &json!({}), "good", 20).await?;
    let stopped = env.take_all("garenne.dead", 1).await?;
    ensure!(stopped[0].text("garenne-reason") == "stopped", "{stopped:?}");
    let good = (0..20).map(|n| format!("good-{n}")).collect();
    let workers = vec![worker, second];
    until_done(&workers, &good).await?;
    stop_cleanly(workers).await
}

#[tokio::test]
async fn unreadable_dead_letters_can_be_listed_replayed_and_dropped() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("a")?.stdout().start().await?;
    let mut raw = RawClient::connect(&env.vhost().amqp_url()).await?;
    // As if the broker had dead-lettered them.
    let bad = |kind: &str, id: &[u8]| {
        let message = RawMessage::to("", "garenne.dead").property(Property::DeliveryMode, [2]);
        message.property(Property::Type, kind).property(Property::MessageId, id).body("{}")
    };
    let deep = bad("bench.sleep", b"deep").headers(&Table::nested_tables(3_000));
    for message in [bad("bench.noop", b"caf\xe9-1"), bad("bench.noop", b"caf\xe9-2"), deep] {
        ensure!(raw.publish(&message).await? == Outcome::Confirmed);
    }
    let listed = env.garenne(&["dead", "list", "--json"]).await?;
    ensure!(listed.stdout.len() == 3, "{:?} {:?}", listed.stdout, listed.stderr);
    let first: Value = serde_json::from_str(&listed.stdout[0])?;
    ensure!(first["id"] == "caf\u{fffd}-1", "{first}");
    ensure!(first["error"] == "the message cannot be read: message_id is not UTF-8", "{first}");

    env.garenne(&["dead", "replay", "--kind", "bench.noop"]).await?;
    worker.until_done(2).await?;
    env.garenne(&["dead", "drop", "--kind", "bench.sleep", "--yes"]).await?;
    env.is_empty("garenne.dead").await?;
    let stopped = worker.stop().await?;
    ensure!((stopped.receipt.acked, stopped.receipt.dead) == (2, 0), "{:?}", stopped.receipt);
    Ok(())
}

#[tokio::test]
async fn unreadable_messages_are_dead_letters_over_tls_too() -> Result<()> {
    if engine::mode().await == Mode::Process {
        suite::leave_out("a broker with TLS runs in a container only");
        return Ok(());
    }
    let authority = Authority::new()?;
    let (server, client) = (authority.sign("127.0.0.1")?, authority.sign("worker")?);
    let tls = Tls { ca: authority.pem(), cert: server.cert, key: server.key };
    let broker = Broker::start(BrokerOptions { tls: Some(tls), ..BrokerOptions::default() }).await?;
    let env = TestEnv::on(&broker).await?;
    let port = broker.amqps_port().context("no listener for amqps")?;
    let url = format!("amqps://guest:guest@127.0.0.1:{port}/{}", env.vhost().name());
    for (name, content) in [("ca.pem", authority.pem()), ("cert.pem", client.cert), ("key.pem", client.key)] {
        std::fs::write(env.folder().join(name), content)?;
    }
    let file = |name: &str| env.folder().join(name).display().to_string();
    let plan = env.worker_at("a", &url)?.stdout().env("GARENNE_AMQP_TLS__CA", file("ca.pem"));
    let plan = plan.env("GARENNE_AMQP_TLS__CERT", file("cert.pem"));
    let worker = plan.env("GARENNE_AMQP_TLS__KEY", file("key.pem")).start().await?;

    // The worker reads the version over TLS: a delivery limit of -1 is right on 4.x and loses messages on 3.x.
    let limit = match broker.version() >= BrokerVersion(4, 0, 0) {
        true => json!(-1),
        false => Value::Null,
    };
    for queue in ["garenne.tasks.fast", "garenne.dead", "garenne.quarantine"] {
        let arguments = env.vhost().view().queue(queue).await?.arguments;
        ensure!(arguments["x-delivery-limit"] == limit, "{queue} on {}: {arguments}", broker.version());
    }

    let mut raw = RawClient::connect(&env.vhost().amqp_url()).await?;
    let mut good = BTreeSet::new();
    let bad = bad_messages(raw.frame_max());
    for (n, bad) in bad.iter().enumerate() {
        good.extend(env.publish("bench.noop", &json!({}), &format!("good-{n}"), AROUND).await?);
        ensure!(raw.publish(&bad.message).await? == Outcome::Confirmed, "{}", bad.name);
        check(&letter(&mut raw).await.context(bad.name)?, bad)?;
    }
    let workers = vec![worker];
    until_done(&workers, &good).await?;
    stop_cleanly(workers).await
}
