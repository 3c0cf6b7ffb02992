//! What is wrong with the broker, the database, and what is on the broker, provoked for real: every tool says the same
//! (`harness::tools`), and `/readyz` of a process names what is wrong with that process.

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    client::with_id,
    dashboard::Dashboard,
    gateway::GatewayPlan,
    postgres::Postgres,
    process::Program,
    suite,
    test_env::{DELAYS, TestEnv},
    tools::{Tools, find},
    users,
    vhost::Rights,
    wait::{Seen, eventually},
};
use lapin::{options::QueueDeclareOptions, types::FieldTable};
use serde_json::{Value, json};

/// The subject of problems of the broker.
async fn broker_subject(tools: &Tools) -> Result<String> {
    let now = tools.dashboard().json("/api/now").await?;
    Ok(format!("broker {}", now["broker"].as_str().context("the broker")?))
}

/// As [`Tools::until_seen`], with this detail.
async fn until_said(
    tools: &mut Tools,
    (name, subject): (&str, &str),
    detail: &str,
    code: i32,
) -> Result<Value> {
    tools
        .until(detail, |problems| find(problems, name, subject).filter(|it| it["detail"] == detail).map(drop))
        .await?;
    tools.until_seen(name, subject, code).await
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
    let mut tools = Tools::start(&env, &[]).await?;
    tools.dashboard().until_it_listens(&env).await?;
    tools.until_none().await?;
    env.garenne(&["lane", "pause", "slow"]).await?;
    env.client().publish("garenne.tasks", "spectrum.any", with_id("paused"), b"{}").await?;
    tools.until_seen("paused", "lane slow", 0).await?;
    broker.set_memory_alarm(true).await?;
    // It would refuse every reading.
    gateway.until_ready(false).await?;
    // It finishes and acks tasks. Taken out of service, it would not even do that.
    let warning = r#""warnings":["an alarm of the broker blocks publishers (memory or disk)"]"#;
    let warned = async |warned: bool| {
        eventually(format!("the worker is ready and warns of the alarm: {warned}"), async || {
            let answer = worker.get("/readyz").await?;
            Ok(Seen::when(answer.contains(r#""ready":true"#) && answer.contains(warning) == warned, answer))
        })
        .await
    };
    warned(true).await?;
    ensure!(worker.is_live().await?);
    let subject = broker_subject(&tools).await?;
    let seen = tools.until_seen("broker-alarm", &subject, 1).await?;
    ensure!(seen["detail"].as_str().is_some_and(|detail| detail.contains("memory")), "{seen}");
    let answer = tools.dashboard().json("/v1/problems").await?;
    let names = answer["problems"].as_array().context("a list")?.iter().map(|it| it["problem"].as_str());
    ensure!(names.eq([Some("broker-alarm"), Some("paused")]), "silence has a cause: {answer}");
    // No heartbeat arrives. The lane is known to be paused from the audit log, so it is not said to have no worker.
    let paused = tools.until_seen("paused", "lane slow", 1).await?;
    ensure!(paused["detail"].as_str().is_some_and(|it| it.starts_with("paused by ")), "{paused}");
    // Autoscalers keep the number of workers.
    let scale = tools.dashboard().get("/scale/fast").await?;
    let (status, text) = (scale.status(), scale.text().await?);
    ensure!(status == 503 && text.contains("an alarm of the broker blocks publishers"), "{status}: {text}");
    let metrics = tools.dashboard().get("/metrics").await?.text().await?;
    ensure!(!metrics.contains("garenne_backlog_seconds{"), "no backlog is known: {metrics}");
    broker.set_memory_alarm(false).await?;
    gateway.until_ready(true).await?;
    warned(false).await?;
    env.client().channel().queue_purge("garenne.tasks.slow".into(), Default::default()).await?;
    env.garenne(&["lane", "resume", "slow"]).await?;
    tools.until("no pause", |problems| problems.as_array()?.is_empty().then_some(())).await?;
    tools.dashboard_mut().until_ready().await?;
    broker.pause().await?;
    // What a frozen broker holds back is not missing: no worker is silent meanwhile.
    let first = tools.until("a problem", |problems| problems.as_array()?.first().cloned()).await?;
    // Which of both comes first depends on when it looked last.
    let names = ["broker-unavailable", "no-heartbeats"].map(Value::from);
    ensure!(names.contains(&first["problem"]) && first["subject"] == subject, "{first}");
    tools.until_seen("broker-unavailable", &subject, 69).await?;
    let answer = tools.dashboard().json("/v1/problems").await?;
    ensure!(answer["problems"].as_array().map(Vec::len) == Some(1), "silence has a cause: {answer}");
    let now = tools.dashboard().json("/api/now").await?;
    ensure!(now["is_heard"] == false, "{now}");
    worker.until_not_ready().await?;
    gateway.until_ready(false).await?;
    // Its figures are too old to act on.
    tools.dashboard().until_not_ready_for("the queues").await?;
    broker.unpause().await?;
    tools.until_none().await?;
    tools.dashboard_mut().until_ready().await?;
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
    let mut tools = Tools::start(&env, &[("GARENNE_POSTGRES_URL", &url)]).await?;
    tools.until_none().await?;
    postgres.kill().await?;
    tools.until_seen("sink-down", "sink postgres", 1).await?;
    worker.until_not_ready_for("postgres").await?;
    tools.until_seen("database-unavailable", "database", 1).await?;
    postgres.restart().await?;
    tools.until_none().await?;
    worker.kill().await?;
    Ok(())
}

#[tokio::test]
async fn problems_of_the_topology_are_said_by_every_tool() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let worker = env.worker("w")?.env("GARENNE_EVENTS__HEARTBEAT", "500ms").start().await?;
    let channel = env.client().channel();
    for queue in ["garenne.tasks.slow", "garenne.directives", "garenne.dead"] {
        channel.queue_delete(queue.into(), Default::default()).await?;
    }
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare("garenne.dead".into(), durable, FieldTable::default()).await?;
    channel.exchange_delete("garenne.results".into(), Default::default()).await?;
    let (audit, events) = ("garenne.audit".into(), "garenne.events".into());
    channel.queue_unbind(audit, events, "audit.#".into(), Default::default()).await?;

    // Tools that start later compare the topology at once, and not after ten seconds.
    let mut tools = Tools::start(&env, &[]).await?;
    let queues = "missing queues: garenne.directives, garenne.tasks.slow";
    let queues = until_said(&mut tools, ("missing-queue", ""), queues, 1).await?;
    let next = queues["next"].as_str().unwrap_or_default();
    ensure!(next.contains("`garenne topology apply`"), "{queues}");
    until_said(&mut tools, ("missing-exchange", ""), "missing exchange: garenne.results", 1).await?;
    // A queue that is declared again has lost its bindings.
    let binding =
        "missing bindings: garenne.dead -> garenne.dead (#), garenne.events -> garenne.audit (audit.#)";
    until_said(&mut tools, ("missing-binding", ""), binding, 1).await?;
    let differs = tools.until_seen("topology-differs", "", 1).await?;
    ensure!(differs["detail"].as_str().is_some_and(|it| it.contains("queue garenne.dead: ")), "{differs}");
    tools.until_seen("lane-not-consumed", "lane slow at worker w", 1).await?;
    // What waits in a lane without its queue is not known.
    let scale = tools.dashboard().get("/scale/slow").await?;
    ensure!(scale.status() == 503, "{scale:?}");
    ensure!(scale.text().await?.contains("garenne.tasks.slow is missing"));
    worker.until_not_ready_for("lane slow").await?;

    let subject = broker_subject(&tools).await?;
    channel.exchange_delete("garenne.events".into(), Default::default()).await?;
    tools.until_seen("no-heartbeats", &subject, 1).await?;
    channel.queue_delete("garenne.dead".into(), Default::default()).await?;
    env.garenne(&["topology", "apply"]).await?;
    let healed = |problems: &Value| find(problems, "no-heartbeats", &subject).is_none().then_some(());
    tools.until("heartbeats again", healed).await?;
    worker.kill().await?;
    Ok(())
}

#[tokio::test]
async fn problems_of_missing_rights_name_the_user_the_right_and_the_command() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let mut tools = Tools::start(&env, &[]).await?;
    tools.dashboard().until_it_listens(&env).await?;
    let vhost = env.vhost().name();
    let detail = |user: &str, right: &str, resource: &str| {
        format!(r#"user "{user}-{vhost}" lacks the right {right} on {resource} in virtual host "{vhost}""#)
    };
    // The test environment's workers have other retry delays.
    let apply = Program::garenne(&env.vhost().amqp_url(), &["topology", "apply"]);
    apply.env("GARENNE_RETRY__DELAYS", DELAYS).succeed().await?;
    // A worker that may publish no copy does not start.
    let (configure, read) = (r"^garenne\.worker\..*", r"^garenne\..*");
    let no_copies = Rights { configure, write: r"^garenne\..*", read };
    let program = Program::new("garenne-worker")
        .option("--amqp-url", env.vhost().user_url("no-copies", no_copies).await?)
        .env("GARENNE_RETRY__DELAYS", DELAYS)
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
    let seen = until_said(&mut tools, ("missing-right", &format!("user {user}")), &lacks, 1).await?;
    let command = format!(
        r"`rabbitmqctl set_permissions -p '{vhost}' '{user}' '^garenne\.worker\..*' '^(amq\.default|"
    );
    ensure!(seen["next"].as_str().is_some_and(|next| next.starts_with(&command)), "{command}: {seen}");
    worker.kill().await?;

    let no_tasks = Rights { configure: "^$", write: r"^garenne\.events$", read: "^$" };
    let gateway = GatewayPlan::at(&env.vhost().user_url("no-tasks", no_tasks).await?)?;
    let gateway = gateway.env("GARENNE_RETRY__DELAYS", DELAYS).env("GARENNE_EVENTS__HEARTBEAT", "500ms");
    let gateway = gateway.start().await?;
    let reading = r#"{"device":"d","metric":"m","value":1}"#;
    let lacks = detail("no-tasks", "write", r#"exchange "garenne.tasks""#);
    let subject = format!("user no-tasks-{vhost}");
    let seen = eventually("the gateway's missing right", async || {
        let answer = gateway.post("/v1/readings", "application/json", reading).await?;
        ensure!(answer.status != 202, "{answer:?}");
        let answer = tools.dashboard().json("/v1/problems").await?;
        let found = find(&answer["problems"], "missing-right", &subject).cloned();
        Ok(found.map_or_else(|| Seen::Other(answer.to_string()), Seen::Wanted))
    });
    let seen = seen.await?;
    ensure!(seen["detail"] == lacks, "{seen}");
    tools.until_seen("missing-right", &subject, 1).await?;
    gateway.until_not_ready_for("write access to exchange 'garenne.tasks'").await?;
    gateway.kill().await?;

    // A console that may not read the heartbeats.
    let deaf = Rights {
        configure: r"^garenne\.console\..*",
        write: ".*",
        read: r"^garenne\.(audit|lifecycle|console\..*)$",
    };
    let url = env.vhost().user_url("deaf", deaf).await?;
    let status = Program::garenne(&url, &["status"]).env("GARENNE_LOG", "off").run().await?;
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
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let viewer = users::user(env.vhost(), "viewer").await?;
    let read_only = |program: Program| program.arg("--read-only");
    let blind = Dashboard::start_without_management(&env, &viewer, read_only).await?;
    let mut blind = Tools::beside(blind, &env, &[]).await?;
    let subject = broker_subject(&blind).await?;
    blind.until_seen("alarms-unseen", &subject, 0).await.map(drop)
}

/// It is told of the alarm by the management API.
#[tokio::test]
async fn problems_of_an_alarm_are_read_from_the_management_api() -> Result<()> {
    if !suite::is_full() {
        suite::leave_out("an alarm needs a broker of its own: it needs `./dev test --full`");
        return Ok(());
    }
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    env.garenne(&["topology", "apply"]).await?;
    let viewer = users::user(env.vhost(), "viewer").await?;
    let read_only = |program: Program| program.arg("--read-only");
    let dashboard = Dashboard::start_as(&env, &viewer, read_only).await?;
    let tools = Tools::beside(dashboard, &env, &[]).await?;
    tools.until_none().await?;
    let subject = broker_subject(&tools).await?;
    broker.set_memory_alarm(true).await?;
    // Tools that publish have another source, and another text.
    let alarm =
        tools.until("the alarm", |problems| find(problems, "broker-alarm", &subject).cloned()).await?;
    ensure!(alarm["detail"].as_str().is_some_and(|detail| detail.contains("memory at rabbit")), "{alarm}");
    broker.set_memory_alarm(false).await?;
    tools.until_none().await
}
