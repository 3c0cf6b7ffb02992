//! An operator stops a task. It ends in every state: in its queue, waiting in a worker, running, waiting for its retry,
//! or while no worker runs.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use garenne_protocol::task::{ContentType, Directive, Kind, NewTask, TaskId};
use garenne_tests::harness::{
    client::{Taken, headers, text, with_id},
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::Worker,
};
use serde_json::json;

fn now() -> Result<Duration> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}

async fn stop(env: &TestEnv, arguments: &[&str]) -> Result<()> {
    env.garenne(&[&["task", "stop"], arguments].concat()).await?;
    Ok(())
}

/// Publishes stop directives as the console does, each confirmed.
async fn publish_directives(env: &TestEnv, tasks: impl IntoIterator<Item = String>) -> Result<()> {
    for task in tasks {
        let directive = Directive::StopTask { task, at: i64::try_from(now()?.as_millis())? };
        let (properties, body) = (with_id("directive"), serde_json::to_vec(&directive)?);
        env.client().publish("garenne.control", Directive::ROUTING_KEY, properties, &body).await?;
    }
    Ok(())
}

/// Takes `count` dead letters, checks that each was stopped, and returns their sorted ids.
async fn stopped(env: &TestEnv, count: usize) -> Result<Vec<String>> {
    let dead = env.take_all("garenne.dead", count).await?;
    for dead in &dead {
        assert_eq!(dead.text("garenne-reason"), "stopped", "{dead:?}");
        assert_eq!(dead.text("garenne-error"), "stopped by an operator", "{dead:?}");
    }
    let mut ids: Vec<_> = dead.iter().map(|dead| dead.id().to_owned()).collect();
    ids.sort();
    Ok(ids)
}

#[tokio::test]
async fn stop_ends_a_task_in_every_state() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("busy")?.stdout().lane("fast:prefetch=2,concurrency=1..1");
    let worker = plan.env("GARENNE_RETRY__DELAYS", "15s").start().await?;
    env.publish("bench.fail", &json!({"times": 1}), "retrying", 1).await?;
    env.until_queue("garenne.retry.fast.15s", 1, 0).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "running", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    env.publish("bench.noop", &json!({}), "held", 1).await?;
    worker.until_holds("fast", 1, 1).await?;
    env.publish("bench.noop", &json!({}), "queued", 1).await?;
    env.publish("bench.noop", &json!({}), "wanted", 1).await?;

    let all = ["held-0", "queued-0", "retrying-0", "running-0"];
    stop(&env, &all).await?;
    assert_eq!(stopped(&env, all.len()).await?, all);
    assert_eq!(worker.until_done(1).await?[0].task_id, "wanted-0");
    env.until_lane("fast", 0, 0).await?;
    // Only the task that was not stopped succeeded.
    let outcome = async |kind: &str, outcome: &str| {
        let labels = [format!("kind=\"{kind}\""), format!("outcome=\"{outcome}\"")];
        let labels: Vec<_> = labels.iter().map(String::as_str).collect();
        worker.metric("garenne_tasks_total", &labels).await
    };
    assert_eq!(outcome("bench.noop", "success").await?, 1.0);
    assert_eq!(outcome("bench.fail", "success").await?, 0.0);
    assert_eq!(outcome("bench.sleep", "stopped").await?, 1.0);
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead, receipt.retried), (1, 4, 1), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn stop_ends_the_tasks_of_a_group_but_not_those_published_later() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("busy")?.stdout().lane("fast:prefetch=3,concurrency=1..1");
    let worker = plan.env("GARENNE_RETRY__DELAYS", "15s").start().await?;
    let send = async |kind: &str, id: &str, group: &str, body: serde_json::Value| {
        let properties = with_id(id)
            .with_timestamp(now()?.as_secs())
            .with_headers(headers([("garenne-group", text(group))]));
        env.client().publish("garenne.tasks", kind, properties, body.to_string().as_bytes()).await
    };
    let publish =
        async |id: &str, group: &str, ms: u64| send("bench.sleep", id, group, json!({ "ms": ms })).await;
    send("bench.fail", "retrying", "import-7", json!({"times": 1})).await?;
    env.until_queue("garenne.retry.fast.15s", 1, 0).await?;
    publish("running", "import-7", 600_000).await?;
    worker.until_holds("fast", 1, 0).await?;
    publish("held", "import-7", 1).await?;
    publish("other", "import-8", 1).await?;
    publish("queued", "import-7", 1).await?;
    worker.until_holds("fast", 1, 2).await?;
    stop(&env, &["--group", "import-7"]).await?;
    assert_eq!(stopped(&env, 4).await?, ["held", "queued", "retrying", "running"]);
    // Foreign publishers date tasks in seconds. The directive covers the whole second in which it was given, and the
    // console has waited for the end of that second.
    publish("later", "import-7", 1).await?;
    worker.until_done_with("later").await?;
    assert_eq!(worker.stop().await?.ids(), ["other", "later"]);
    env.is_empty("garenne.dead").await
}

/// Garenne's publishers date tasks in milliseconds. A directive does not cover tasks that were published after it, even
/// if it arrives later than they do.
#[tokio::test]
async fn stop_of_a_group_is_exact_to_the_millisecond_for_our_publishers() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("busy")?.stdout().lane("fast:prefetch=8,concurrency=1..1").start().await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "first", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    let publish = async |id: &str, at: Duration| {
        let kind = Kind::parse("bench.noop")?;
        let mut task = NewTask::new(kind, ContentType::Json, b"{}".to_vec());
        (task.id, task.group) = (TaskId::parse(id)?, Some("import".to_owned()));
        let properties = task.properties(UNIX_EPOCH + at);
        env.client().publish("garenne.tasks", "bench.noop", properties, b"{}").await
    };
    // In the middle of a second that has already passed when the directive is published.
    let at = Duration::from_secs(now()?.as_secs() - 2) + Duration::from_millis(500);
    publish("before", at).await?;
    publish("after", at + Duration::from_millis(1)).await?;
    worker.until_holds("fast", 1, 2).await?;
    let directive = Directive::StopGroup { group: "import".into(), at: i64::try_from(at.as_millis())? };
    let (properties, body) = (with_id("directive"), serde_json::to_vec(&directive)?);
    env.client().publish("garenne.control", Directive::ROUTING_KEY, properties, &body).await?;
    assert_eq!(stopped(&env, 1).await?, ["before"]);
    stop(&env, &["first-0"]).await?;
    worker.until_done_with("after").await?;
    assert_eq!(stopped(&env, 1).await?, ["first-0"]);
    worker.stop().await?;
    Ok(())
}

/// Directives are kept in a stream. A worker reads all of them before it starts any task.
#[tokio::test]
async fn stop_applies_if_no_worker_runs() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    env.publish("bench.noop", &json!({}), "unwanted", 2).await?;
    env.publish("bench.noop", &json!({}), "wanted", 3).await?;
    publish_directives(&env, (0..500).map(|n| format!("unrelated-{n}"))).await?;
    stop(&env, &["unwanted-0", "unwanted-1"]).await?;
    let worker = env.worker("later")?.stdout().start().await?;
    assert_eq!(stopped(&env, 2).await?, ["unwanted-0", "unwanted-1"]);
    worker.until_done(3).await?;
    let stopped = worker.stop().await?;
    // Several threads run them, so their order may differ.
    let mut done = stopped.ids();
    done.sort_unstable();
    assert_eq!(done, ["wanted-0", "wanted-1", "wanted-2"]);
    assert_eq!((stopped.receipt.acked, stopped.receipt.dead), (3, 2));
    Ok(())
}

/// A replay overrules earlier directives: a stopped task runs until it is stopped again.
#[tokio::test]
async fn stop_does_not_apply_to_a_later_replay_until_it_is_repeated() -> Result<()> {
    let env = TestEnv::new().await?;
    // Declares the topology. The worker under test starts after the directives and reads them before any delivery.
    env.worker("first")?.start().await?.stop().await?;
    stop(&env, &["single-0", "endless-0"]).await?;
    stop(&env, &["--group", "import-9"]).await?;
    env.publish("bench.noop", &json!({}), "single", 1).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "endless", 1).await?;
    let properties = with_id("grouped").with_headers(headers([("garenne-group", text("import-9"))]));
    env.client().publish("garenne.tasks", "bench.noop", properties, b"{}").await?;
    let plan = env.worker("obeying")?.stdout().lane("fast:prefetch=4,concurrency=4..4");
    let worker = plan.start().await?;
    env.until_ready_in("garenne.dead", 3).await?;

    let replayed = env.garenne(&["dead", "replay", "--reason", "stopped"]).await?;
    assert_eq!(replayed.stdout, ["replayed 3 of 3 dead letters"], "{:?}", replayed.stderr);
    worker.until_done_with("single-0").await?;
    worker.until_done_with("grouped").await?;
    worker.until_holds("fast", 1, 0).await?;
    env.is_empty("garenne.dead").await?;
    // A worker that starts later reads the old directives and must not apply them either.
    env.until_lane("fast", 0, 1).await?;
    worker.kill().await?;
    let worker = env.worker("later")?.stdout().start().await?;
    worker.until_holds("fast", 1, 0).await?;
    stop(&env, &["endless-0"]).await?;
    assert_eq!(stopped(&env, 1).await?, ["endless-0"]);
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.dead), (1, 1), "{receipt:?}");
    Ok(())
}

/// The stream is deleted and declared again, so offsets restart at zero. New directives still apply.
#[tokio::test]
async fn stop_applies_after_the_stream_was_declared_again() -> Result<()> {
    let env = TestEnv::new().await?;
    // With the permission to declare queues.
    let plan = env.worker_at("declaring", &env.vhost().amqp_url())?.stdout();
    let worker = plan.lane("fast:prefetch=4,concurrency=2..2").start().await?;
    publish_directives(&env, (0..20).map(|n| format!("before-{n}"))).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "running", 2).await?;
    worker.until_holds("fast", 2, 0).await?;
    stop(&env, &["running-0"]).await?;
    assert_eq!(stopped(&env, 1).await?, ["running-0"]);
    let stream = ["queues", env.vhost().name(), "garenne.directives"];
    env.vhost().broker().management().delete(&stream).await?;
    // The directive is unroutable until the worker has declared the stream and its binding again.
    eventually("the directive is confirmed", async || {
        let ended = env.garenne(&["task", "stop", "running-1"]).await?;
        Ok(Seen::when(ended.code == Some(0), format_args!("{:?}", ended.stderr)))
    })
    .await?;
    assert_eq!(stopped(&env, 1).await?, ["running-1"]);
    // The worker still applies directives that it read before the stream was deleted.
    env.publish("bench.noop", &json!({}), "before", 2).await?;
    assert_eq!(stopped(&env, 2).await?, ["before-0", "before-1"]);
    assert_eq!(worker.stop().await?.receipt.acked, 0);
    Ok(())
}

/// The longest time from publishing an invalid task to its dead letter, of `count` tasks, in ms.
async fn dead_letter_latency(env: &TestEnv, count: usize) -> Result<i64> {
    let mut published = BTreeMap::new();
    for n in 0..count {
        let id = format!("invalid-{n}");
        published.insert(id.clone(), i64::try_from(now()?.as_millis())?);
        env.client().publish("garenne.tasks", "bench.sleep", with_id(&id), b"{}").await?;
    }
    let dead = env.take_all("garenne.dead", count).await?;
    let took = dead.iter().map(|dead| {
        let died = dead.number("garenne-died-at").context("no garenne-died-at")?;
        anyhow::Ok(died - published.get(dead.id()).context("a dead letter of another task")?)
    });
    took.collect::<Result<Vec<_>>>()?.into_iter().max().context("no dead letter")
}

/// The median and p99 of the time from the directive to the dead letter of a running task in milliseconds, by the clocks of
/// publisher and worker.
async fn stop_latency(env: &TestEnv, workers: [&Worker; 2], each: usize, prefix: &str) -> Result<(i64, i64)> {
    let ids = env.publish("bench.sleep", &json!({"ms": 600_000}), prefix, 2 * each).await?;
    for worker in workers {
        worker.until_holds("fast", each, 0).await?;
    }
    let mut stopped_at = BTreeMap::new();
    for id in &ids {
        stopped_at.insert(id.clone(), i64::try_from(now()?.as_millis())?);
        publish_directives(env, [id.clone()]).await?;
    }
    let dead = env.take_all("garenne.dead", ids.len()).await?;
    ensure!(dead.iter().all(|dead| dead.text("garenne-reason") == "stopped"), "{dead:?}");
    let took = |dead: &Taken| {
        let died = dead.number("garenne-died-at").context("no garenne-died-at")?;
        let stopped = stopped_at.get(dead.id()).with_context(|| format!("{} was not stopped", dead.id()))?;
        anyhow::Ok(died - stopped)
    };
    let mut took: Vec<_> = dead.iter().map(took).collect::<Result<_>>()?;
    took.sort_unstable();
    Ok((took[took.len() / 2], took[took.len() * 99 / 100 - 1]))
}

#[tokio::test]
async fn stop_takes_effect_within_a_second() -> Result<()> {
    const EACH: usize = 100;
    let env = TestEnv::new().await?;
    let plan = |name| anyhow::Ok(env.worker(name)?.stdout().lane("fast:prefetch=100,concurrency=100..100"));
    let (one, other) = tokio::try_join!(plan("one")?.start(), plan("other")?.start())?;
    let mut rounds = Vec::new();
    // A process may stand still for seconds on a busy machine, but not in every round.
    for round in 0..5 {
        // On a busy machine everything takes longer, so the bound grows with the latency of other dead letters.
        let bound = 1000 + 5 * dead_letter_latency(&env, EACH).await?;
        let (median, p99) = stop_latency(&env, [&one, &other], EACH, &format!("endless-{round}")).await?;
        rounds.push(format!("median {median} ms, p99 {p99} ms of {bound} ms"));
        if p99 < bound {
            println!("{rounds:?}");
            tokio::try_join!(one.stop(), other.stop())?;
            return Ok(());
        }
    }
    bail!("{rounds:?}")
}
