//! Celery's senders, unchanged: their calls run on workers of Garenne, alone or beside Celery's own workers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use garenne_tests::harness::{
    celery::Celery,
    client::{Taken, headers, text},
    handler::repository_file,
    process::Program,
    test_env::{DELAYS, TestEnv},
    wait::{Seen, eventually},
    worker::WorkerPlan,
};
use lapin::{
    BasicProperties,
    options::{BasicConsumeOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::timeout;

/// The tasks that go to Garenne's exchange in scenarios with routes.
const MOVED: &str = "proj.tasks.add,proj.tasks.wait,proj.tasks.flaky,proj.tasks.fail";
/// A name that a worker of Garenne has no handler for.
const LEGACY: &str = "proj.tasks.legacy";

fn answering(plan: WorkerPlan) -> WorkerPlan {
    plan.stdout().env("GARENNE_REPLY_QUEUES", "{uuid}")
}

/// The console with the lane of the calls.
fn console(amqp_url: &str) -> Program {
    let console = Program::garenne(amqp_url, &[]).env("GARENNE_RETRY__DELAYS", DELAYS);
    console.env("GARENNE_LANES__PROJ__CELERY", "true").env("GARENNE_LANES__PROJ__BINDINGS", "proj.#")
}

/// Consumes the queue of the application and passes on what only Celery's workers run.
fn taking_over(plan: WorkerPlan) -> WorkerPlan {
    let plan = plan.env("GARENNE_LANES__PROJ__QUEUE", "proj");
    plan.env("GARENNE_LANES__PROJ__CELERY_PASS_ON", "proj.python")
}

async fn declare(env: &TestEnv, queue: &str, quorum: bool) -> Result<()> {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let arguments = if quorum { headers([("x-queue-type", text("quorum"))]) } else { FieldTable::default() };
    env.client().channel().queue_declare(queue.into(), options, arguments).await?;
    Ok(())
}

#[tokio::test]
async fn calls_that_are_routed_to_garenne_run_as_celery_would_run_them() -> Result<()> {
    let env = TestEnv::new().await?;
    let Some(celery) = Celery::new(&env).await? else { return Ok(()) };
    let plan = answering(env.celery_worker("moved")?).env("GARENNE_MAX_ATTEMPTS", "3");
    let worker = plan.env("GARENNE_LANES__PROJ__CELERY_TIMEZONE", "Asia/Tokyo").start().await?;
    let celery = celery.env("PROJ_MOVED", MOVED);
    let outcomes = celery.send(&["calls", "9"]).await?;
    let of: BTreeMap<_, _> =
        outcomes.iter().map(|(name, result, took)| (name.as_str(), (result, *took))).collect();
    for (name, result) in [
        ("delay", json!(5)),
        ("kwargs", json!(9)),
        ("send-task", json!(13)),
        ("countdown", json!(2)),
        ("eta", json!(3)),
        ("not-expired", json!(4)),
        ("expired", json!("TaskRevokedError: expired before it started")),
        ("limit", json!("RuntimeError: the deadline passed (attempt 3 of 3)")),
        ("hard-limit", json!("RuntimeError: the deadline passed (attempt 3 of 3)")),
        ("flaky", json!({"attempt": 3, "celery": true, "tenant": "acme"})),
        ("fail", json!("RuntimeError: no such account")),
    ] {
        assert_eq!(of[name].0, &result, "{name}");
    }
    assert!(of["countdown"].1 >= 1.9 && of["eta"].1 >= 1.9 && of["delay"].1 < 30.0, "{outcomes:?}");
    let naive = worker.until_done_with("naive").await?;
    let started = OffsetDateTime::parse(&naive.started_at, &Rfc3339)?;
    let eta = of["naive"].0.as_f64().context("a time")?;
    assert!((started.unix_timestamp_nanos() as f64) / 1e9 >= eta - 0.001, "{started} is before {eta}");

    // A dead letter is a task of Garenne, and can be replayed as one.
    let replay = console(env.operator_url()).arg("dead").arg("replay").option("--reason", "rejected");
    let replayed = replay.run().await?;
    assert_eq!(replayed.code, Some(0), "{replayed:?}");
    worker
        .until_metric("garenne_dead_total", &["kind=\"proj.tasks.fail\"", "reason=\"rejected\""], 2.0)
        .await?;
    let letters = env.take_all("garenne.dead", 4).await?;
    let reasons = |reason: &str| letters.iter().filter(|it| it.text("garenne-reason") == reason).count();
    assert_eq!((reasons("expired"), reasons("attempts-exhausted"), reasons("rejected")), (1, 2, 1));
    let failed = letters.iter().find(|it| it.id() == "failed").context("the failed call")?;
    assert!(failed.has("garenne-replayed-at") && failed.text("garenne-error") == "no such account");
    assert_eq!(failed.body, br#"{"args":["no such account"],"kwargs":{}}"#);
    worker.stop().await?;
    Ok(())
}

/// The application's function stays where it is. Only the program that calls it is another one.
#[tokio::test]
async fn a_task_of_the_application_runs_in_its_own_python_without_celerys_worker() -> Result<()> {
    let env = TestEnv::new().await?;
    let Some(celery) = Celery::new(&env).await? else { return Ok(()) };
    let file = env.folder().join("handlers.toml");
    fs::write(&file, celery.handler("proj.tasks.add", "proj:add"))?;
    let plan = answering(env.worker_at("python", &env.vhost().amqp_url())?).option("--config", file);
    let plan = plan.env("GARENNE_LANES__PROJ__CELERY", "true").env("GARENNE_LANES__PROJ__BINDINGS", "proj.#");
    let worker = plan.start().await?;
    let outcomes = celery.env("PROJ_MOVED", MOVED).send(&["added", "2", "40"]).await?;
    assert_eq!((&*outcomes[0].0, &outcomes[0].1), ("added", &json!(42)));
    assert_eq!(worker.stop().await?.receipt.acked, 1);
    Ok(())
}

#[tokio::test]
async fn calls_that_only_celery_can_run_are_refused_and_say_so() -> Result<()> {
    let env = TestEnv::new().await?;
    let Some(celery) = Celery::new(&env).await? else { return Ok(()) };
    let worker = answering(env.celery_worker("refusing")?).start().await?;
    let outcomes = celery.env("PROJ_MOVED", MOVED).send(&["refused"]).await?;
    let letters = env.take_all("garenne.dead", outcomes.len()).await?;
    for (name, says) in [
        ("link", "it has callbacks (link), which only Celery's workers run"),
        ("link-error", "it has errbacks (link_error), which only Celery's workers run"),
        ("chain", "it has a chain, which only Celery's workers run"),
        ("chord", "it has a chord, which only Celery's workers run"),
        ("pickle", "content type \"application/x-python-serialize\" (pickle) is not supported"),
        ("compression", "compression \"application/x-gzip\" is not supported"),
    ] {
        let id = format!("refused-{name}");
        let letter = letters.iter().find(|it| it.id() == id).with_context(|| id.clone())?;
        assert_eq!(letter.text("garenne-reason"), "malformed");
        assert!(letter.text("garenne-error").contains(says), "{}", letter.text("garenne-error"));
        assert_eq!(letter.text("task"), "proj.tasks.add", "the message is as it was");
        let outcome = outcomes.iter().find(|(it, ..)| it == name).with_context(|| id.clone())?;
        let raised = outcome.1.as_str().unwrap_or_default();
        assert!(raised.starts_with("RuntimeError: ") && raised.contains(says), "{raised}");
    }
    worker.stop().await?;
    Ok(())
}

/// Both fleets work on the calls of one application. No sender changes: they publish to the queue that they always used.
async fn both_fleets_at_work(queues: &str) -> Result<()> {
    let env = TestEnv::new().await?;
    let Some(celery) = Celery::new(&env).await? else { return Ok(()) };
    let celery = celery.env("PROJ_QUEUES", queues);
    let python = celery.worker("proj.python").await?;
    // The application declares its queue, and nothing else may.
    declare(&env, "proj", queues == "quorum").await?;
    let worker = taking_over(answering(env.celery_worker("both")?)).start().await?;
    let count = 100;
    let outcomes = celery.send(&["mixed", &count.to_string()]).await?;
    assert_eq!(outcomes[0].1, json!(2 * count));
    env.until_queue("proj", 0, 0).await?;
    env.until_queue("proj.python", 0, 0).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.retried, receipt.dead), (count, count, 0));
    python.kill().await?;
    Ok(())
}

#[tokio::test]
async fn both_fleets_work_on_the_classic_queue_of_an_application() -> Result<()> {
    both_fleets_at_work("classic").await
}

#[tokio::test]
async fn both_fleets_work_on_the_quorum_queue_of_an_application() -> Result<()> {
    both_fleets_at_work("quorum").await
}

#[tokio::test]
async fn a_call_that_is_passed_on_keeps_every_byte() -> Result<()> {
    let env = TestEnv::new().await?;
    declare(&env, "proj", false).await?;
    declare(&env, "proj.python", true).await?;
    let worker = taking_over(env.celery_worker("passing")?).start().await?;
    let sent = BasicProperties::default()
        .with_content_type("application/x-python-serialize".into())
        .with_content_encoding("binary".into())
        .with_correlation_id("c".into())
        .with_reply_to("ded2fd87-d0af-3edf-bee1-98e8bff10c4a".into())
        .with_delivery_mode(2)
        .with_priority(3)
        .with_expiration("600000".into())
        .with_timestamp(1_790_000_000)
        .with_app_id("shop".into())
        .with_headers(headers([
            ("task", text(LEGACY)),
            ("id", text("c")),
            ("eta", AMQPValue::Void),
            ("retries", AMQPValue::LongInt(2)),
            ("timelimit", AMQPValue::FieldArray(vec![AMQPValue::Void, AMQPValue::Double(2.5)].into())),
            ("stamps", AMQPValue::FieldTable(headers([("a", AMQPValue::Boolean(true))]))),
            ("garenne-group", text("of the application")),
        ]));
    let body = b"\x80\x04not JSON\xff";
    env.client().publish("", "proj", sent.clone(), body).await?;
    // A message of protocol 1, which has all of it in the body.
    let old = BasicProperties::default().with_content_type("application/json".into());
    let old_body = br#"{"task":"proj.tasks.legacy","id":"o","args":[],"kwargs":{}}"#;
    env.client().publish("", "proj", old.clone(), old_body).await?;
    let taken = env.take_all("proj.python", 2).await?;
    let same = |taken: &Taken, properties: &BasicProperties, body: &[u8]| {
        taken.properties == *properties && taken.body == body
    };
    assert!(taken.iter().any(|it| same(it, &sent, body)), "{taken:?}");
    assert!(taken.iter().any(|it| same(it, &old, old_body)), "{taken:?}");
    // A task of Garenne without a handler is not one for Celery.
    env.publish(LEGACY, &json!({}), "native", 1).await?;
    worker.until_metric("garenne_unhandled_tasks", &[&format!("kind=\"{LEGACY}\"")], 1.0).await?;
    worker.stop().await?;
    env.is_empty("proj.python").await?;

    // Calls that wait in the application's queue are the lane's backlog, beside the task of Garenne.
    env.client().publish("", "proj", sent, body).await?;
    let status = console(&env.vhost().amqp_url()).env("GARENNE_LANES__PROJ__QUEUE", "proj");
    let status = status.arg("status").arg("--json").run().await?;
    let status: Value = serde_json::from_str(&status.stdout.join("\n"))?;
    let lanes = status["lanes"].as_array().context("lanes")?;
    let lane = lanes.iter().find(|lane| lane["name"] == "proj").context("the lane")?;
    assert_eq!((&lane["ready"], &lane["shards"]["proj"]["ready"]), (&json!(2), &json!(1)), "{status:#}");
    Ok(())
}

/// A pattern of kinds takes the calls whose names match and are kinds. Celery's names may have other characters.
#[tokio::test]
async fn calls_of_a_pattern_of_kinds_run_and_others_are_passed_on() -> Result<()> {
    let env = TestEnv::new().await?;
    declare(&env, "proj", false).await?;
    declare(&env, "proj.python", true).await?;
    let (file, program) =
        (env.folder().join("pattern.toml"), repository_file("tests/clients/odd_handler.py"));
    fs::write(
        &file,
        format!("[handlers.\"proj.tasks.*\"]\ncommand = [\"python3\", {program:?}]\nprocesses = 1\n"),
    )?;
    // It declares the queues of countdowns.
    let plan = env.worker_at("pattern", &env.vhost().amqp_url())?.stdout().option("--config", file);
    let plan = plan.env("GARENNE_LANES__PROJ__CELERY", "true").env("GARENNE_LANES__PROJ__BINDINGS", "proj.#");
    let worker = taking_over(plan).start().await?;
    for name in ["proj.tasks.add", "proj.tasks.add to basket", "proj.reports.add"] {
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_headers(headers([("task", text(name)), ("id", text(name))]));
        env.client().publish("", "proj", properties, b"[[1, 2], {}, {}]").await?;
    }
    let output = worker.until_done_with("proj.tasks.add").await?.output;
    assert_eq!(
        (&output["task"]["kind"], &output["payload"]["args"]),
        (&json!("proj.tasks.add"), &json!([1, 2]))
    );
    let passed: BTreeSet<_> =
        env.take_all("proj.python", 2).await?.iter().map(|it| it.text("task")).collect();
    assert_eq!(passed, ["proj.reports.add", "proj.tasks.add to basket"].map(String::from).into());
    assert_eq!(worker.stop().await?.receipt.acked, 1);
    env.is_empty("garenne.dead").await
}

#[tokio::test]
async fn countdowns_of_quorum_queues_need_no_worker_of_celery() -> Result<()> {
    let env = TestEnv::new().await?;
    let Some(celery) = Celery::new(&env).await? else { return Ok(()) };
    let celery = celery.env("PROJ_QUEUES", "quorum").env("PROJ_MOVED", "proj.tasks.flaky");
    let apply = || async {
        let apply = console(&env.vhost().amqp_url()).env("GARENNE_LANES__PROJ__QUEUE", "proj");
        let applied = apply.arg("topology").arg("apply").run().await?;
        ensure!(applied.code == Some(0), "{applied:?}");
        Ok(())
    };
    // The queue may not exist yet: its owner declares it.
    apply().await?;
    declare(&env, "proj", true).await?;
    apply().await?;
    let worker =
        answering(env.celery_worker("late")?).env("GARENNE_LANES__PROJ__QUEUE", "proj").start().await?;
    let outcomes = celery.send(&["countdown", "3"]).await?;
    assert_eq!((&outcomes[0].1, &outcomes[1].1["attempt"]), (&json!(2), &json!(1)));
    assert!(outcomes.iter().all(|(_, _, took)| *took >= 2.9), "{outcomes:?}");
    worker.stop().await?;

    // A worker of Celery finds its exchanges and queues as it would declare them, and so does Garenne.
    let python = celery.worker("proj.python").await?;
    let log = python.stderr().tail();
    assert!(!log.contains("Failed to declare") && !log.contains("PRECONDITION_FAILED"), "{log}");
    apply().await?;
    python.kill().await?;
    Ok(())
}

#[tokio::test]
async fn no_call_is_lost_when_a_worker_is_killed() -> Result<()> {
    let env = TestEnv::new().await?;
    let Some(celery) = Celery::new(&env).await? else { return Ok(()) };
    declare(&env, "proj", false).await?;
    let effects = env.folder().join("effects");
    let plan = || -> Result<WorkerPlan> {
        let plan = taking_over(env.celery_worker("killed")?.stdout());
        Ok(plan
            .env("CELERY_EFFECTS", effects.display().to_string())
            .env("GARENNE_LANES__PROJ__CONCURRENCY", "4"))
    };
    let count = 300;
    let sent = celery.send(&["effects", &count.to_string()]).await?;
    assert_eq!(sent[0].1, json!(count));
    let worker = plan()?.start().await?;
    worker.until_done(50).await?;
    let before = worker.kill().await?.len();
    assert!(before < count, "it held something: {before} were done");
    let worker = plan()?.start().await?;
    env.until_queue("proj", 0, 0).await?;
    env.until_lane("proj", 0, 0).await?;
    eventually("every call has had its effect", async || {
        let lines = std::fs::read_to_string(&effects)?;
        let ids = lines.lines().collect::<BTreeSet<_>>().len();
        Ok(Seen::when(ids == count, format_args!("{ids} of {count}")))
    })
    .await?;
    env.is_empty("garenne.dead").await?;
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_sender_of_another_language_needs_few_headers() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.celery_worker("any")?.stdout().start().await?;
    let (client, channel) = (env.client(), env.client().channel());
    let direct = "amq.rabbitmq.reply-to";
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let mut replies = channel.basic_consume(direct.into(), "".into(), options, FieldTable::default()).await?;
    let none = BasicProperties::default().with_correlation_id("none".into()).with_reply_to(direct.into());
    client.publish("garenne.tasks", "proj.tasks.add", none, b"[[1, 2], {}, null]").await?;
    let named = BasicProperties::default()
        .with_reply_to(direct.into())
        .with_headers(headers([("task", text("proj.tasks.add")), ("id", text("named"))]));
    client.publish("", "garenne.tasks.proj", named, br#"[[], {"x": 3, "y": 4}, {}]"#).await?;
    let mut answers = BTreeMap::new();
    while answers.len() < 2 {
        let reply = timeout(Duration::from_secs(20), replies.next()).await?.context("no consumer")??;
        let correlation = reply.properties.correlation_id().clone().context("a correlation id")?;
        answers.insert(correlation.to_string(), serde_json::from_slice::<Value>(&reply.data)?);
    }
    let success = |id: &str, result: i64| json!({"status": "SUCCESS", "result": result, "traceback": null, "children": [], "task_id": id});
    assert_eq!(answers["none"], success("none", 3));
    assert_eq!(answers["named"], success("named", 7));
    // The address that each call has is no problem, whoever waits there or does not.
    for n in 0..20 {
        let properties = BasicProperties::default()
            .with_correlation_id(format!("{n}").into())
            .with_reply_to("ded2fd87-d0af-3edf-bee1-98e8bff10c4a".into())
            .with_headers(headers([("task", text("proj.tasks.add"))]));
        client.publish("garenne.tasks", "proj.tasks.add", properties, b"[[1, 2], {}, {}]").await?;
    }
    worker.until_done(22).await?;
    let ignored = worker.find_metric("garenne_headers_ignored_total", &["header=\"reply_to\""]).await?;
    assert_eq!(ignored.unwrap_or_default(), 0.0);
    let published = worker.find_metric("garenne_publishes_total", &[]).await?;
    assert!(published.unwrap_or_default() <= 2.0, "no reply goes where none is allowed");
    worker.stop().await?;
    Ok(())
}
