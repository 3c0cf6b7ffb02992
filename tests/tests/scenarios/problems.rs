//! What is wrong with lanes, workers and tasks, provoked for real: every tool says the same (`harness::tools`).

use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use garenne_console::audit_log::command_line;
use garenne_protocol::task::{Directive, epoch_ms};
use garenne_tests::harness::{
    client::{Client, headers, with_id},
    process::Signal,
    suite,
    test_env::TestEnv,
    tools::{Tools, find},
    wait::{Seen, eventually},
};
use lapin::{
    options::QueueDeclareOptions,
    types::{AMQPValue, FieldTable},
};
use serde_json::json;
use tokio::time::interval;

#[tokio::test]
async fn problems_of_lanes_and_workers_are_said_by_every_tool() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let plan = env.worker("w")?.stdout().lane("fast:prefetch=10,concurrency=2..2");
    let worker = plan.env("GARENNE_EVENTS__HEARTBEAT", "500ms").start().await?;
    let mut tools = Tools::start(&env, &[]).await?;
    env.publish("bench.sleep", &json!({"ms": 1}), "quick", 100).await?;
    worker.until_done(100).await?;
    tools.until_none().await?;
    until_status(&env, 0, |text| text.starts_with("no problems\n")).await?;

    env.publish("bench.sleep", &json!({"ms": 600_000}), "hanging", 5).await?;
    let stalled = tools.until_seen("lane-stalled", "lane fast", 1).await?;
    ensure!(stalled["severity"] == "critical", "{stalled}");
    let wanted = "1 critical problem\ncritical  lane fast: nothing ends, 3 tasks wait, all 2 slots are busy";
    until_status(&env, 1, |text| text.starts_with(wanted)).await?;

    env.garenne(&["lane", "pause", "fast"]).await?;
    let paused = tools.until_seen("paused", "lane fast", 0).await?;
    let by = format!("paused by {} (command-line ", command_line().name);
    ensure!(paused["detail"].as_str().is_some_and(|detail| detail.starts_with(&by)), "{by}: {paused}");
    until_status(&env, 0, |text| text.contains(&format!("lane fast: {by}"))).await?;
    env.garenne(&["lane", "resume", "fast"]).await?;
    tools.until("no pause", |problems| find(problems, "paused", "lane fast").is_none().then_some(())).await?;
    // A program without an audit record: nobody is named.
    let order = format!(r#"{{"pause_lane":"fast","at":{}}}"#, epoch_ms(SystemTime::now()));
    env.client()
        .publish("garenne.control", Directive::ROUTING_KEY, with_id("foreign"), order.as_bytes())
        .await?;
    let unknown = tools.until("a pause by nobody", |problems| {
        let found = find(problems, "paused", "lane fast")?;
        found["detail"].as_str()?.contains("by whom and since when is unknown").then(|| found.clone())
    });
    ensure!(unknown.await?["since"].is_null());
    env.garenne(&["lane", "resume", "fast"]).await?;

    env.client().publish("garenne.tasks", "spectrum.any", with_id("unserved"), b"{}").await?;
    // The one is noticed while the other is awaited.
    worker.signal(Signal::STOP)?;
    tools.until_seen("lane-without-worker", "lane slow", 1).await?;
    tools.until_seen("silent-worker", "worker w", 1).await?;
    worker.signal(Signal::CONT)?;
    worker.kill().await?;
    ensure!(tools.end().await? == Some(0));
    Ok(())
}

/// Waits until `status` ends with a code and a text. It looks once, and on a busy machine a heartbeat may be late then.
async fn until_status(env: &TestEnv, code: i32, is_wanted: impl Fn(&str) -> bool) -> Result<()> {
    eventually("the answer of status", async || {
        let ended = env.try_garenne(&["status"]).await?;
        let text = ended.stdout.join("\n");
        Ok(Seen::when(ended.code == Some(code) && is_wanted(&text), text))
    })
    .await
}

/// A lane is late, its tasks fail or wait for an hour, a kind has no worker, and messages match no binding.
#[tokio::test]
async fn problems_of_tasks_are_said_by_every_tool() -> Result<()> {
    let settings = [
        ("GARENNE_RETRY__DELAYS", "200ms,1h"),
        ("GARENNE_LANES__DEFAULT__CATCH_ALL", "false"),
        ("GARENNE_SCALE__OBJECTIVE", "1s"),
    ];
    let env = TestEnv::new().await?;
    let plan = settings.iter().take(2).fold(env.worker("w")?, |plan, (name, value)| plan.env(name, *value));
    let plan = plan.lane("fast:prefetch=10,concurrency=2..2").env("GARENNE_EVENTS__HEARTBEAT", "500ms");
    let worker = plan.option("--max-attempts", "1").start().await?;
    // Letters of which no worker tells, and that were there before the tools, are no growth.
    for id in ["first", "second"] {
        env.client().publish("garenne.dead", "bench.fail", with_id(id), b"{}").await?;
    }
    env.until_ready_in("garenne.dead", 2).await?;
    let mut tools = Tools::start(&env, &settings).await?;
    tools.until_seen("dead-letters", "", 0).await?;
    env.publish("bench.fail", &json!({"times": 1}), "another", 1).await?;
    // The worker tells of it before the queue is counted again.
    let counted = tools.until("a letter among three", |problems| {
        let growing = find(problems, "dead-letters-growing", "")?;
        growing["detail"].as_str()?.ends_with(", 3 in the queue").then_some(())
    });
    counted.await?;
    tools.until_seen("dead-letters-growing", "", 1).await?;

    let later =
        with_id("later").with_headers(headers([("garenne-delay-ms", AMQPValue::LongLongInt(7_200_000))]));
    env.client().publish("garenne.tasks", "bench.noop", later, b"{}").await?;
    tools.until_seen("retries-far-ahead", "lane fast", 1).await?;
    env.client().publish("garenne.tasks", "unbound.kind", with_id("unbound"), b"{}").await?;
    tools.until_seen("unroutable", "", 1).await?;
    env.publish("bench.unknown", &json!({}), "unserved", 2).await?;
    tools.until_seen("kind-without-worker", "kind bench.unknown", 1).await?;
    env.publish("bench.sleep", &json!({"ms": 500}), "slow", 200).await?;
    let late = tools.until_seen("lane-late", "lane fast", 1).await?;
    ensure!(
        late["detail"].as_str().is_some_and(|detail| detail.ends_with("the objective is 1.0s")),
        "{late}"
    );
    worker.kill().await?;
    Ok(())
}

/// A worker that starts again and again, and a host with a wrong clock.
#[tokio::test]
async fn problems_of_restarts_and_clocks_are_said_by_every_tool() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let mut tools = Tools::start(&env, &[]).await?;
    tools.dashboard().until_it_listens(&env).await?;
    let start = async || env.worker("loop")?.env("GARENNE_EVENTS__HEARTBEAT", "500ms").start().await;
    // They end before they would be missed: only the stream of starts tells them from one that runs.
    for _ in 0..3 {
        start().await?.kill().await?;
    }
    let worker = start().await?;
    tools.until_seen("restart-loop", "worker loop", 1).await?;
    // Nor is one that has ended properly heard.
    worker.stop().await?;
    tools.until_seen("restart-loop", "worker loop", 1).await?;

    // Two programs of one host have the same clock. What a host with another one sends is the same heartbeat.
    let client = Client::connect(&env.vhost().amqp_url()).await?;
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    client.channel().queue_declare("garenne.worker.late".into(), options, FieldTable::default()).await?;
    let beating = async {
        let (mut pace, started) = (interval(Duration::from_millis(200)), epoch_ms(SystemTime::now()));
        loop {
            pace.tick().await;
            let beat = json!({
                "program": "worker", "id": "late", "incarnation": "1", "host": "plant", "version": "0.1.0", "started_at": started,
                "at": epoch_ms(SystemTime::now()) - 7_000, "every_ms": 500, "stance": "open",
            });
            let body = beat.to_string();
            client.publish("garenne.events", "beat.worker.late", with_id("beat"), body.as_bytes()).await?;
        }
    };
    tokio::select! {
        ended = beating => ended,
        skewed = tools.until_seen("clock-skew", "worker late", 1) => {
            let skewed = skewed?;
            let detail = skewed["detail"].as_str().unwrap_or_default();
            ensure!(detail.contains("the clock of its host \"plant\" is 7.") && detail.contains("behind"), "{skewed}");
            Ok(())
        }
    }
}

/// No task hangs before it has run for a minute.
#[tokio::test]
async fn problems_of_hung_tasks_are_said_by_every_tool() -> Result<()> {
    if !suite::is_full() {
        suite::leave_out("a task hangs after a minute at the earliest: it needs `./dev test --full`");
        return Ok(());
    }
    let env = TestEnv::new().await?;
    let worker = env.worker("w")?.stdout().start().await?;
    env.publish("bench.sleep", &json!({"ms": 1}), "quick", 100).await?;
    worker.until_done(100).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "hanging", 2).await?;
    let mut tools = Tools::start(&env, &[]).await?;
    let hung = tools.until_seen("hung-tasks", "kind bench.sleep", 1).await?;
    ensure!(hung["next"].as_str().is_some_and(|next| next.contains("`garenne task stop hanging-")), "{hung}");
    worker.kill().await?;
    Ok(())
}
