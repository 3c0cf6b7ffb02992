//! What is wrong with a fleet, provoked for real: `status`, `/v1/problems`, the page's state and the metric say the same.

use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use garenne_console::audit_log::command_line;
use garenne_protocol::task::{StandingOrder, epoch_ms};
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    client::with_id,
    dashboard::Dashboard,
    gateway::GatewayPlan,
    postgres::Postgres,
    process::Signal,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::{Value, json};

/// The problem with this name and subject in a list of problems.
fn find<'v>(problems: &'v Value, name: &str, subject: &str) -> Option<&'v Value> {
    problems.as_array()?.iter().find(|it| it["problem"] == name && it["subject"] == subject)
}

/// Waits until the dashboard sees a problem, and requires the same of its page's state, its metric and `status`.
async fn until_seen(
    env: &TestEnv,
    dashboard: &Dashboard,
    name: &str,
    subject: &str,
    code: i32,
) -> Result<Value> {
    let seen = until(name, dashboard, |problems| {
        // Who paused something is looked up after it is seen.
        find(problems, name, subject).filter(|it| it["since"].is_i64()).cloned()
    })
    .await?;
    ensure!(seen["detail"] != "" && seen["next"] != "", "no sentence or no next step: {seen}");
    let now = dashboard.json("/api/now").await?;
    find(&now["problems"], name, subject)
        .with_context(|| format!("the page's state: {}", now["problems"]))?;
    let metrics = dashboard.get("/metrics").await?.text().await?;
    let severity = seen["severity"].as_str().context("a severity")?;
    let metric =
        format!("garenne_problems{{problem=\"{name}\",severity=\"{severity}\",subject=\"{subject}\"}} 1");
    ensure!(metrics.contains(&metric), "{metric} in {metrics}");
    let status = env.try_garenne(&["status"]).await?;
    let text = status.stdout.join("\n");
    ensure!(status.code == Some(code), "{status:?}");
    let before_the_table = text.split("RabbitMQ ").next().unwrap_or_default();
    ensure!(before_the_table.contains(subject) && before_the_table.contains(severity), "{subject}: {text}");
    Ok(seen)
}

/// Waits for something in the dashboard's list of problems.
async fn until<T>(what: &str, dashboard: &Dashboard, wanted: impl Fn(&Value) -> Option<T>) -> Result<T> {
    eventually(what, async || {
        let answer = dashboard.json("/v1/problems").await?;
        Ok(wanted(&answer["problems"]).map_or_else(|| Seen::Other(answer.to_string()), Seen::Wanted))
    })
    .await
}

/// Waits until the dashboard sees no problem but notices.
async fn until_none(dashboard: &Dashboard) -> Result<()> {
    eventually("no problems", async || {
        let answer = dashboard.json("/v1/problems").await?;
        Ok(Seen::when(answer["verdict"] == "no problems", answer))
    })
    .await
}

#[tokio::test]
async fn problems_of_lanes_and_workers_are_said_by_every_tool() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let plan = env.worker("w")?.stdout().lane("fast:prefetch=10,concurrency=2..2");
    let worker = plan.env("GARENNE_EVENTS__HEARTBEAT", "500ms").start().await?;
    let dashboard = Dashboard::start(&env).await?;
    env.publish("bench.sleep", &json!({"ms": 1}), "quick", 100).await?;
    worker.until_done(100).await?;
    until_none(&dashboard).await?;
    ensure!(env.garenne(&["status"]).await?.stdout[0] == "no problems");

    env.publish("bench.sleep", &json!({"ms": 600_000}), "hanging", 5).await?;
    let stalled = until_seen(&env, &dashboard, "lane-stalled", "lane fast", 1).await?;
    ensure!(stalled["severity"] == "critical", "{stalled}");
    let text = env.try_garenne(&["status"]).await?.stdout.join("\n");
    ensure!(
        text.starts_with(
            "1 critical problem\ncritical  lane fast: nothing ends, 3 tasks wait, all 2 slots are busy"
        ),
        "{text}"
    );

    env.garenne(&["lane", "pause", "fast"]).await?;
    let paused = until_seen(&env, &dashboard, "paused", "lane fast", 0).await?;
    let by = format!("paused by {} (command-line ", command_line().name);
    ensure!(paused["detail"].as_str().is_some_and(|detail| detail.starts_with(&by)), "{by}: {paused}");
    let text = env.garenne(&["status"]).await?.stdout.join("\n");
    ensure!(text.contains(&format!("lane fast: {by}")), "{text}");
    env.garenne(&["lane", "resume", "fast"]).await?;
    until("no pause", &dashboard, |problems| find(problems, "paused", "lane fast").is_none().then_some(()))
        .await?;
    // A program without an audit record: nobody is named.
    let order = format!(r#"{{"pause_lane":"fast","at":{}}}"#, epoch_ms(SystemTime::now()));
    env.client()
        .publish("garenne.control", StandingOrder::ROUTING_KEY, with_id("foreign"), order.as_bytes())
        .await?;
    let unknown = until("a pause by nobody", &dashboard, |problems| {
        let found = find(problems, "paused", "lane fast")?;
        found["detail"].as_str()?.contains("by whom and since when is unknown").then(|| found.clone())
    });
    ensure!(unknown.await?["since"].is_null());
    env.garenne(&["lane", "resume", "fast"]).await?;

    env.client().publish("garenne.tasks", "spectrum.any", with_id("unserved"), b"{}").await?;
    until_seen(&env, &dashboard, "lane-without-worker", "lane slow", 1).await?;
    env.client().publish("garenne.dead", "any.kind", with_id("letter"), b"{}").await?;
    until_letters(&dashboard).await?;

    worker.signal(Signal::STOP)?;
    until_seen(&env, &dashboard, "silent-worker", "worker w", 1).await?;
    worker.signal(Signal::CONT)?;
    worker.kill().await?;
    Ok(())
}

/// Waits until the dashboard says that dead letters grow. `status` looks once, and says that there are some.
async fn until_letters(dashboard: &Dashboard) -> Result<()> {
    eventually("growing dead letters", async || {
        let answer = dashboard.json("/v1/problems").await?;
        let found = find(&answer["problems"], "dead-letters-growing", "").is_some();
        Ok(Seen::when(found, answer))
    })
    .await
}

#[tokio::test]
async fn problems_of_the_broker_name_its_alarm_and_hide_no_worker() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    env.garenne(&["topology", "apply"]).await?;
    let worker = env.worker("w")?.start().await?;
    let mut gateway = GatewayPlan::new(&env)?.start().await?;
    gateway
        .post("/v1/readings", "application/json", r#"{"device":"d","metric":"m","value":1}"#)
        .await?
        .ids()?;
    let dashboard = Dashboard::start(&env).await?;
    dashboard.until_it_listens(&env).await?;
    until_none(&dashboard).await?;
    broker.set_memory_alarm(true).await?;
    // It would refuse every reading.
    gateway.until_ready(false).await?;
    let subject = dashboard.json("/api/now").await?["broker"].as_str().context("the broker")?.to_owned();
    let subject = format!("broker {subject}");
    let seen = until_seen(&env, &dashboard, "broker-alarm", &subject, 69).await?;
    ensure!(seen["detail"].as_str().is_some_and(|detail| detail.contains("memory")), "{seen}");
    let answer = dashboard.json("/v1/problems").await?;
    ensure!(answer["problems"].as_array().map(Vec::len) == Some(1), "silence has a cause: {answer}");
    broker.set_memory_alarm(false).await?;
    gateway.until_ready(true).await?;
    until_none(&dashboard).await?;
    broker.pause().await?;
    eventually("the broker's silence", async || {
        let answer = dashboard.json("/v1/problems").await?;
        Ok(Seen::when(find(&answer["problems"], "broker-unavailable", &subject).is_some(), answer))
    })
    .await?;
    broker.unpause().await?;
    until_none(&dashboard).await?;
    gateway.kill().await?;
    worker.kill().await?;
    Ok(())
}

#[tokio::test]
async fn problems_of_the_database_are_told_from_those_of_its_sink() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let postgres = Postgres::start().await?;
    let database = postgres.database().await?;
    let url = database.url();
    env.garenne(&["database", "migrate", "--postgres-url", &url]).await?;
    let worker =
        env.worker("w")?.option("--sink", "postgres").env("GARENNE_POSTGRES_URL", &url).start().await?;
    let dashboard = Dashboard::with_database(&env, &url).await?;
    until_none(&dashboard).await?;
    postgres.kill().await?;
    until_seen(&env, &dashboard, "sink-down", "sink postgres", 1).await?;
    eventually("the database", async || {
        let answer = dashboard.json("/v1/problems").await?;
        Ok(Seen::when(find(&answer["problems"], "database-unavailable", "database").is_some(), answer))
    })
    .await?;
    postgres.restart().await?;
    until_none(&dashboard).await?;
    worker.kill().await?;
    Ok(())
}
