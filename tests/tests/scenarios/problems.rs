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
    process::{Program, Signal},
    test_env::TestEnv,
    users,
    vhost::Rights,
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
    // With it, bindings are compared too.
    let management = env.vhost().management_url();
    let status = env.try_garenne(&["status", "--management-url", &management]).await?;
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

/// Waits until the dashboard names a problem with this detail, and requires the same of the other tools.
async fn until_said(
    env: &TestEnv,
    dashboard: &Dashboard,
    (name, subject): (&str, &str),
    detail: &str,
) -> Result<Value> {
    until(detail, dashboard, |problems| {
        find(problems, name, subject).filter(|it| it["detail"] == detail).map(drop)
    })
    .await?;
    let seen = until_seen(env, dashboard, name, subject, 1).await?;
    let text = env
        .try_garenne(&["status", "--management-url", &env.vhost().management_url()])
        .await?
        .stdout
        .join("\n");
    ensure!(text.contains(detail), "{detail}: {text}");
    Ok(seen)
}

#[tokio::test]
async fn problems_of_deleted_queues_streams_exchanges_and_bindings_are_said_by_every_tool() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let dashboard = Dashboard::start(&env).await?;
    until_none(&dashboard).await?;
    let channel = env.client().channel();
    for queue in ["garenne.tasks.slow", "garenne.directives"] {
        channel.queue_delete(queue.into(), Default::default()).await?;
    }
    channel.exchange_delete("garenne.results".into(), Default::default()).await?;
    let (audit, events) = ("garenne.audit".into(), "garenne.events".into());
    channel.queue_unbind(audit, events, "audit.#".into(), Default::default()).await?;
    let queues = "missing: garenne.directives, garenne.tasks.slow";
    let queues = until_said(&env, &dashboard, ("missing-queue", ""), queues).await?;
    ensure!(
        queues["next"].as_str().is_some_and(|next| next.contains("`garenne topology apply`")),
        "{queues}"
    );
    until_said(&env, &dashboard, ("missing-exchange", ""), "missing: garenne.results").await?;
    let binding = "missing: garenne.events -> garenne.audit (audit.#)";
    until_said(&env, &dashboard, ("missing-binding", ""), binding).await?;
    env.garenne(&["topology", "apply"]).await?;
    until_none(&dashboard).await
}

#[tokio::test]
async fn problems_of_missing_rights_name_the_user_the_right_and_the_command() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let dashboard = Dashboard::start(&env).await?;
    dashboard.until_it_listens(&env).await?;
    let vhost = env.vhost().name();
    let detail = |user: &str, right: &str, resource: &str| {
        format!(r#"user "{user}-{vhost}" lacks the right {right} on {resource} in virtual host "{vhost}""#)
    };
    // The test environment's workers have other retry delays.
    let program =
        Program::new("garenne").option("--amqp-url", env.vhost().amqp_url()).arg("topology").arg("apply");
    let applied = program.env("GARENNE_RETRY__DELAYS", "200ms,400ms").run().await?;
    ensure!(applied.code == Some(0), "{applied:?}");
    // A worker that may publish no copy does not start.
    let (configure, read) = (r"^garenne\.worker\..*", r"^garenne\..*");
    let no_copies = Rights { configure, write: r"^garenne\..*", read };
    let program = Program::new("garenne-worker")
        .option("--amqp-url", env.vhost().user_url("no-copies", no_copies).await?)
        .env("GARENNE_RETRY__DELAYS", "200ms,400ms")
        .env("GARENNE_LOG", "off");
    let ended = program.run().await?;
    let lacks = detail("no-copies", "write", r#"exchange "amq.default""#);
    ensure!(ended.code == Some(77) && ended.stderr.join("\n").contains(&lacks), "{lacks}: {ended:?}");

    let write = r"^(amq\.default|garenne\.(events|retry\..*|worker\..*))$";
    let url = env.vhost().user_url("no-results", Rights { configure, write, read }).await?;
    let worker = env.worker_at("w", &url)?.stdout().option("--sink", "results").start().await?;
    env.publish("bench.sleep", &json!({"ms": 1}), "task", 1).await?;
    let lacks = detail("no-results", "write", r#"exchange "garenne.results""#);
    let user = format!("no-results-{vhost}");
    let seen = until_said(&env, &dashboard, ("missing-right", &format!("user {user}")), &lacks).await?;
    let command = format!(
        r"`rabbitmqctl set_permissions -p '{vhost}' '{user}' '^garenne\.worker\..*' '^(amq\.default|"
    );
    ensure!(seen["next"].as_str().is_some_and(|next| next.starts_with(&command)), "{command}: {seen}");
    worker.kill().await?;

    let no_tasks = Rights { configure: "^$", write: r"^garenne\.events$", read: "^$" };
    let gateway = GatewayPlan::at(&env.vhost().user_url("no-tasks", no_tasks).await?)?;
    let gateway = gateway.env("GARENNE_RETRY__DELAYS", "200ms,400ms").start().await?;
    let reading = r#"{"device":"d","metric":"m","value":1}"#;
    let lacks = detail("no-tasks", "write", r#"exchange "garenne.tasks""#);
    let subject = format!("user no-tasks-{vhost}");
    let seen = eventually("the gateway's missing right", async || {
        let answer = gateway.post("/v1/readings", "application/json", reading).await?;
        ensure!(answer.status != 202, "{answer:?}");
        let answer = dashboard.json("/v1/problems").await?;
        let found = find(&answer["problems"], "missing-right", &subject).cloned();
        Ok(found.map_or_else(|| Seen::Other(answer.to_string()), Seen::Wanted))
    });
    let seen = seen.await?;
    ensure!(seen["detail"] == lacks, "{seen}");
    gateway.kill().await?;

    // A console that may not read the heartbeats.
    let deaf = Rights {
        configure: r"^garenne\.console\..*",
        write: ".*",
        read: r"^garenne\.(audit|lifecycle|console\..*)$",
    };
    let url = env.vhost().user_url("deaf", deaf).await?;
    let program = Program::new("garenne").option("--amqp-url", url).env("GARENNE_LOG", "off").arg("status");
    let status = program.run().await?;
    let text = status.stdout.join("\n");
    let lacks = detail("deaf", "read", r#"exchange "garenne.events""#);
    ensure!(
        status.code == Some(77) && text.contains(&lacks) && !text.contains("no heartbeats"),
        "{status:?}"
    );
    Ok(())
}

#[tokio::test]
async fn problems_of_an_alarm_are_seen_by_a_dashboard_that_publishes_nothing() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    env.garenne(&["topology", "apply"]).await?;
    let viewer = users::user(env.vhost(), "viewer").await?;
    let dashboard = Dashboard::start_as(&env, &viewer, |program| program.arg("--read-only")).await?;
    until_none(&dashboard).await?;
    broker.set_memory_alarm(true).await?;
    let alarm = until("the alarm", &dashboard, |problems| {
        problems.as_array()?.iter().find(|it| it["problem"] == "broker-alarm").cloned()
    });
    let alarm = alarm.await?;
    ensure!(alarm["detail"].as_str().is_some_and(|detail| detail.contains("memory at rabbit")), "{alarm}");
    broker.set_memory_alarm(false).await?;
    until_none(&dashboard).await
}
