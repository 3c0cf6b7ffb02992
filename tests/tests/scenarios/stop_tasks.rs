//! An operator stops a task, and it ends wherever it is: with the broker, held by a worker, running,
//! waiting for its retry, or before any worker runs at all.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use garenne_protocol::task::{ContentType, Kind, NewTask, StandingOrder, TaskId};
use garenne_tests::harness::{
    client::{Taken, headers, text, with_id},
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;

fn now() -> Result<Duration> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}

async fn stop(env: &TestEnv, arguments: &[&str]) -> Result<()> {
    let ended = env.garenne(&[&["task", "stop"], arguments].concat()).await?;
    ensure!(ended.code == Some(0), "{:?}", ended.stderr);
    Ok(())
}

/// Gives orders as the operator's tool does, all of them confirmed.
async fn order(env: &TestEnv, tasks: impl IntoIterator<Item = String>) -> Result<()> {
    for task in tasks {
        let order = StandingOrder::Task { task, at: i64::try_from(now()?.as_millis())? };
        let (properties, body) = (with_id("order"), serde_json::to_vec(&order)?);
        env.client().publish("garenne.control", StandingOrder::ROUTING_KEY, properties, &body).await?;
    }
    Ok(())
}

/// Takes the dead letters, which must all be stopped ones, and answers their ids in order.
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
async fn stop_reaches_a_task_wherever_it_is() -> Result<()> {
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
    // None of them ran: what was told to stop while it ran had no success either.
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
async fn stop_ends_a_group_but_not_what_is_published_later() -> Result<()> {
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
    // Publishers say the second; the order covers all of the one it was given in, and the tool has waited
    // for its end.
    publish("later", "import-7", 1).await?;
    worker.until_done_with("later").await?;
    assert_eq!(worker.stop().await?.ids(), ["other", "later"]);
    env.is_empty("garenne.dead").await
}

/// Our own publishers say the millisecond: what is published right after an order is not covered by it, also
/// where the order arrives later than the task.
#[tokio::test]
async fn stop_of_a_group_covers_our_own_tasks_by_the_millisecond() -> Result<()> {
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
    // In the middle of a second, which has passed by the time of the order.
    let at = Duration::from_secs(now()?.as_secs() - 2) + Duration::from_millis(500);
    publish("before", at).await?;
    publish("after", at + Duration::from_millis(1)).await?;
    worker.until_holds("fast", 1, 2).await?;
    let order = StandingOrder::Group { group: "import".into(), at: i64::try_from(at.as_millis())? };
    let (properties, body) = (with_id("order"), serde_json::to_vec(&order)?);
    env.client().publish("garenne.control", StandingOrder::ROUTING_KEY, properties, &body).await?;
    assert_eq!(stopped(&env, 1).await?, ["before"]);
    stop(&env, &["first-0"]).await?;
    worker.until_done_with("after").await?;
    assert_eq!(stopped(&env, 1).await?, ["first-0"]);
    worker.stop().await?;
    Ok(())
}

/// The orders are kept: a worker reads all of them before it starts anything.
#[tokio::test]
async fn stop_holds_when_no_worker_runs() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    env.publish("bench.noop", &json!({}), "unwanted", 2).await?;
    env.publish("bench.noop", &json!({}), "wanted", 3).await?;
    order(&env, (0..500).map(|n| format!("long-gone-{n}"))).await?;
    stop(&env, &["unwanted-0", "unwanted-1"]).await?;
    let worker = env.worker("later")?.stdout().start().await?;
    assert_eq!(stopped(&env, 2).await?, ["unwanted-0", "unwanted-1"]);
    worker.until_done(3).await?;
    let stopped = worker.stop().await?;
    // Begun in this order, by several workers of the pool.
    let mut done = stopped.ids();
    done.sort_unstable();
    assert_eq!(done, ["wanted-0", "wanted-1", "wanted-2"]);
    assert_eq!((stopped.receipt.acked, stopped.receipt.dead), (3, 2));
    Ok(())
}

/// An explicit replay is the later word: what was stopped runs, until it is stopped again.
#[tokio::test]
async fn stop_gives_way_to_a_later_replay_and_wins_again_after_it() -> Result<()> {
    let env = TestEnv::new().await?;
    // Makes the topology. Who starts after the orders has read them before anything is delivered.
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
    // Who starts later reads the old orders, and must come to the same conclusion.
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

/// The stream is deleted and made again: offsets begin anew, and new orders are still heard.
#[tokio::test]
async fn stop_is_heard_after_the_stream_was_made_anew() -> Result<()> {
    let env = TestEnv::new().await?;
    // It may make what is missing.
    let plan = env.worker_at("hearing", &env.vhost().amqp_url())?.stdout();
    let worker = plan.lane("fast:prefetch=4,concurrency=2..2").start().await?;
    order(&env, (0..20).map(|n| format!("before-{n}"))).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "running", 2).await?;
    worker.until_holds("fast", 2, 0).await?;
    stop(&env, &["running-0"]).await?;
    assert_eq!(stopped(&env, 1).await?, ["running-0"]);
    let stream = ["queues", env.vhost().name(), "garenne.directives"];
    env.vhost().broker().management().delete(&stream).await?;
    // Nobody takes the order until the worker has made the stream again, bindings and all.
    eventually("the order is taken", async || {
        let ended = env.garenne(&["task", "stop", "running-1"]).await?;
        Ok(Seen::when(ended.code == Some(0), format_args!("{:?}", ended.stderr)))
    })
    .await?;
    assert_eq!(stopped(&env, 1).await?, ["running-1"]);
    // What was ordered before the stream went is not forgotten by who saw it.
    env.publish("bench.noop", &json!({}), "before", 2).await?;
    assert_eq!(stopped(&env, 2).await?, ["before-0", "before-1"]);
    assert_eq!(worker.stop().await?.receipt.acked, 0);
    Ok(())
}

/// How long it takes from publishing a task that is refused to its dead letter: the longest of so many, in ms.
async fn until_dead(env: &TestEnv, count: usize) -> Result<i64> {
    let mut published = BTreeMap::new();
    for n in 0..count {
        let id = format!("refused-{n}");
        published.insert(id.clone(), i64::try_from(now()?.as_millis())?);
        env.client().publish("garenne.tasks", "bench.sleep", with_id(&id), b"{}").await?;
    }
    let dead = env.take_all("garenne.dead", count).await?;
    let took = dead.iter().map(|dead| {
        let died = dead.number("garenne-died-at").context("no garenne-died-at")?;
        anyhow::Ok(died - published.get(dead.id()).context("another's dead letter")?)
    });
    took.collect::<Result<Vec<_>>>()?.into_iter().max().context("no dead letter")
}

/// From the order to the death of a running task, by the clocks of who gave the order and of who obeyed.
#[tokio::test]
async fn stop_arrives_within_a_second() -> Result<()> {
    const EACH: usize = 100;
    let env = TestEnv::new().await?;
    let plan = |name| anyhow::Ok(env.worker(name)?.stdout().lane("fast:prefetch=100,concurrency=100..100"));
    let (one, other) = tokio::try_join!(plan("one")?.start(), plan("other")?.start())?;
    let usual = until_dead(&env, EACH).await?;
    let ids = env.publish("bench.sleep", &json!({"ms": 600_000}), "endless", 2 * EACH).await?;
    tokio::try_join!(one.until_holds("fast", EACH, 0), other.until_holds("fast", EACH, 0))?;
    let mut ordered = BTreeMap::new();
    for id in &ids {
        ordered.insert(id.clone(), i64::try_from(now()?.as_millis())?);
        order(&env, [id.clone()]).await?;
    }
    let dead = env.take_all("garenne.dead", ids.len()).await?;
    let took = |dead: &Taken| {
        let died = dead.number("garenne-died-at").context("no garenne-died-at")?;
        let ordered = ordered.get(dead.id()).with_context(|| format!("{} was not ordered", dead.id()))?;
        anyhow::Ok(died - ordered)
    };
    let mut took: Vec<_> = dead.iter().map(took).collect::<Result<_>>()?;
    took.sort_unstable();
    let (median, p99) = (took[took.len() / 2], took[took.len() * 99 / 100 - 1]);
    println!("{} orders: median {median} ms, p99 {p99} ms, longest {} ms", took.len(), took[took.len() - 1]);
    // On a busy machine all takes longer: the bound follows what a plain dead letter took just before.
    let bound = 1000 + 5 * usual;
    assert!(p99 < bound, "p99 {p99} ms of {bound} ms, median {median} ms");
    assert!(dead.iter().all(|dead| dead.text("garenne-reason") == "stopped"));
    tokio::try_join!(one.stop(), other.stop())?;
    Ok(())
}
