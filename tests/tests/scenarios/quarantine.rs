//! Tasks in the quarantine run one at a time. Only crashes of the worker that runs the task count against it, and it
//! runs on a worker that has its handler.

use std::{
    collections::BTreeSet,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, ensure};
use garenne_protocol::task::header;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    client::{headers, text, with_id},
    process::Signal,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::{Worker, WorkerEnd},
};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::{Value, json};

const QUARANTINE: &str = "garenne.quarantine";

/// Publishes tasks `prefix-0` and so on to the quarantine, as a worker does.
async fn quarantine(
    env: &TestEnv,
    kind: &str,
    payload: &Value,
    prefix: &str,
    count: usize,
) -> Result<Vec<String>> {
    let marks = headers([(header::LANE, text("fast"))]);
    quarantine_with(env, kind, payload, prefix, count, &marks).await
}

async fn quarantine_with(
    env: &TestEnv,
    kind: &str,
    payload: &Value,
    prefix: &str,
    count: usize,
    marks: &FieldTable,
) -> Result<Vec<String>> {
    let ids: Vec<_> = (0..count).map(|n| format!("{prefix}-{n}")).collect();
    for id in &ids {
        let properties = with_id(id).with_type(kind.into()).with_headers(marks.clone());
        env.client().publish("", QUARANTINE, properties, payload.to_string().as_bytes()).await?;
    }
    Ok(ids)
}

async fn start(env: &TestEnv, name: &str) -> Result<Worker> {
    env.worker(name)?.stdout().lane("fast:prefetch=20,concurrency=2..2").start().await
}

/// The ids of the tasks that these workers have done.
fn done(workers: &[&Worker]) -> Result<BTreeSet<String>> {
    let mut ids = BTreeSet::new();
    for worker in workers {
        ids.extend(worker.done()?.into_iter().map(|done| done.task_id));
    }
    Ok(ids)
}

/// Waits until all of these tasks are done and there are no dead letters.
async fn until_all_done(env: &TestEnv, ids: &[String], workers: &[&Worker]) -> Result<()> {
    eventually("all tasks are done", async || {
        let dead = env.client().ready("garenne.dead").await?;
        if dead > 0 {
            return Ok(Seen::Never(format!("{dead} dead letters")));
        }
        let done = done(workers)?;
        Ok(Seen::when(ids.iter().all(|id| done.contains(id)), format_args!("{} done", done.len())))
    })
    .await?;
    env.until_queue(QUARANTINE, 0, 0).await?;
    env.is_empty("garenne.dead").await
}

/// The number of these workers that run a task of the quarantine.
async fn busy(workers: &[&Worker]) -> Result<usize> {
    let mut busy = 0;
    for worker in workers {
        let pool: Value = serde_json::from_str(&worker.get("/pool").await?)?;
        busy += usize::from(pool["lanes"]["quarantine"]["running"].as_u64() == Some(1));
    }
    Ok(busy)
}

async fn until_busy(workers: &[&Worker], count: usize) -> Result<()> {
    eventually(format!("{count} workers run a task of the quarantine"), async || {
        let busy = busy(workers).await?;
        Ok(Seen::when(busy >= count, busy))
    })
    .await
}

/// Closes every connection of these workers from the broker's side.
async fn close_connections(env: &TestEnv, workers: &[&Worker]) -> Result<usize> {
    let names: BTreeSet<_> =
        workers.iter().map(|worker| format!("garenne-worker {}", worker.name())).collect();
    let mut closed = 0;
    for connection in env.vhost().view().connections().await? {
        let named = connection.user_provided_name.as_deref();
        if named.is_some_and(|named| names.iter().any(|name| named.starts_with(name.as_str()))) {
            env.vhost().broker().management().close_connection(&connection.name).await?;
            closed += 1;
        }
    }
    Ok(closed)
}

/// The number of redeliveries from the quarantine so far.
async fn redeliveries(workers: &[&Worker]) -> Result<f64> {
    let mut all = 0.0;
    for worker in workers {
        all += worker.metric("garenne_redeliveries_total", &["lane=\"quarantine\""]).await?;
    }
    Ok(all)
}

/// The workers' connections are closed repeatedly while other workers crash.
#[tokio::test]
async fn connection_losses_count_as_no_crash_even_while_other_workers_crash() -> Result<()> {
    let env = TestEnv::new().await?;
    let (one, other) = tokio::try_join!(start(&env, "one"), start(&env, "other"))?;
    let workers = [&one, &other];
    let mut ids = quarantine(&env, "bench.sleep", &json!({"ms": 60_000}), "long", 2).await?;
    ids.extend(quarantine(&env, "bench.factorial", &json!({"n": 5}), "short", 20).await?);
    for round in 0..3 {
        until_busy(&workers, 1).await?;
        // Its crash is unrelated to these tasks: it has no handler for them.
        let name = format!("crashing-{round}");
        let crashing = env.worker_of_kinds(&name, &["kind.other"])?.stdout().start().await?;
        crashing.kill().await?;
        let before = redeliveries(&workers).await?;
        eventually("the workers' connections are closed", async || {
            let closed = close_connections(&env, &workers).await?;
            Ok(Seen::when(closed >= 2, closed))
        })
        .await?;
        eventually("their running tasks are redelivered", async || {
            let now = redeliveries(&workers).await?;
            Ok(Seen::when(now > before, now))
        })
        .await?;
    }
    until_all_done(&env, &ids, &workers).await?;
    tokio::try_join!(one.stop(), other.stop())?;
    Ok(())
}

#[tokio::test]
async fn broker_restarts_count_as_no_crash() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut env = TestEnv::on(&broker).await?;
    let (mut one, mut other) = tokio::try_join!(start(&env, "one"), start(&env, "other"))?;
    let mut ids = quarantine(&env, "bench.sleep", &json!({"ms": 120_000}), "long", 2).await?;
    ids.extend(quarantine(&env, "bench.factorial", &json!({"n": 5}), "short", 20).await?);
    for _ in 0..3 {
        until_busy(&[&one, &other], 1).await?;
        broker.stop().await?;
        broker.restart().await?;
        env.reconnect().await?;
        tokio::try_join!(one.until_ready(), other.until_ready())?;
    }
    ensure!(redeliveries(&[&one, &other]).await? >= 2.0, "no task was redelivered");
    until_all_done(&env, &ids, &[&one, &other]).await?;
    tokio::try_join!(one.stop(), other.stop())?;
    Ok(())
}

#[tokio::test]
async fn clean_stops_count_as_no_crash() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    let ids = quarantine(&env, "bench.sleep", &json!({"ms": 20_000}), "long", 1).await?;
    for round in 0..3 {
        let plan = env.worker(&format!("leaving-{round}"))?.stdout();
        let worker = plan.option("--shutdown-mode", "hard").start().await?;
        until_busy(&[&worker], 1).await?;
        let stopped = worker.stop().await?;
        ensure!(stopped.receipt.requeued == 1, "{:?}", stopped.receipt);
    }
    let worker = start(&env, "staying").await?;
    until_all_done(&env, &ids, &[&worker]).await?;
    worker.stop().await?;
    Ok(())
}

/// Three workers run at the same time, and each one that crashes is replaced at once.
#[tokio::test]
async fn poison_is_the_only_dead_letter_while_workers_run_side_by_side() -> Result<()> {
    const EACH: usize = 100;
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    let healthy = json!({ "ms": 5 });
    let mut ids = env.publish("bench.sleep", &healthy, "early", EACH).await?;
    env.publish("bench.abort", &json!({}), "poison", 1).await?;
    ids.extend(env.publish("bench.sleep", &healthy, "late", EACH).await?);
    let begin = async |n: usize| {
        env.worker(&format!("side-{n}"))?.stdout().lane("fast:prefetch=20,concurrency=2..2").begin().await
    };
    let (mut workers, mut started, mut crashes) = (Vec::new(), 0, 0);
    let mut finished = BTreeSet::new();
    while crashes < 12 {
        while workers.len() < 3 {
            workers.push(begin(started).await?);
            started += 1;
        }
        let over = eventually("a crash, or every task settled", async || {
            if workers.iter().any(Worker::has_ended) {
                return Ok(Seen::Wanted(false));
            }
            let dead = env.client().ready("garenne.dead").await?;
            let now = done(&workers.iter().collect::<Vec<_>>())?;
            let all = now.union(&finished).count();
            let over = dead == 1 && all == ids.len();
            Ok(if over { Seen::Wanted(true) } else { Seen::Other(format!("{dead} dead, {all} done")) })
        })
        .await?;
        if over {
            break;
        }
        for worker in std::mem::take(&mut workers) {
            if !worker.has_ended() {
                workers.push(worker);
                continue;
            }
            let WorkerEnd::Crashed(done) = worker.ended().await? else {
                anyhow::bail!("a worker stopped instead of crashing")
            };
            crashes += 1;
            finished.extend(done.into_iter().map(|done| done.task_id));
        }
    }
    println!("{crashes} crashes");
    ensure!((4..=6).contains(&crashes), "{crashes} workers crashed");
    for worker in workers {
        finished.extend(worker.stop().await?.done.into_iter().map(|done| done.task_id));
    }
    assert_eq!(finished, ids.into_iter().collect());
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("poison-0", "poison"));
    assert_eq!(
        dead.number(header::QUARANTINE_RUNS),
        Some(1),
        "the first crash in the quarantine is in its headers"
    );
    ensure!(dead.text(header::QUARANTINE_WORKER).starts_with("side-"), "{dead:?}");
    env.is_empty(QUARANTINE).await
}

/// A worker that is frozen while its connection is closed is taken for a crashed one. When it reconnects, that crash no
/// longer counts.
#[tokio::test]
async fn the_crash_of_a_worker_that_reconnects_no_longer_counts() -> Result<()> {
    let env = TestEnv::new().await?;
    let frozen = start(&env, "frozen").await?;
    let ids = quarantine(&env, "bench.sleep", &json!({"ms": 20_000}), "long", 1).await?;
    until_busy(&[&frozen], 1).await?;
    let other = start(&env, "other").await?;
    frozen.signal(Signal::STOP)?;
    eventually("its connections are closed", async || {
        let closed = close_connections(&env, &[&frozen]).await?;
        Ok(Seen::when(closed >= 1, closed))
    })
    .await?;
    other.until_logged("crashed its worker").await?;
    // Before the first worker is back, because it consumes the quarantine too and could be faster.
    until_busy(&[&other], 1).await?;
    frozen.signal(Signal::CONT)?;
    // Only the other worker's crash counts.
    other.kill().await?;
    let last = start(&env, "last").await?;
    until_all_done(&env, &ids, &[&last, &frozen]).await?;
    tokio::try_join!(frozen.stop(), last.stop())?;
    Ok(())
}

/// With different programs or during a rolling upgrade, not every worker has every handler.
#[tokio::test]
async fn a_worker_runs_kinds_that_it_has_a_handler_for_and_passes_on_others() -> Result<()> {
    let env = TestEnv::new().await?;
    let left = env.worker_of_kinds("left", &["kind.left"])?.stdout().start().await?;
    let right = env.worker_of_kinds("right", &["kind.right"])?.stdout().start().await?;
    let mut lefts = quarantine(&env, "kind.left", &json!({"ms": 1}), "left", 5).await?;
    let mut rights = quarantine(&env, "kind.right", &json!({"ms": 1}), "right", 5).await?;
    let batch = json!([{"id": "record", "payload": {"ms": 1}}]).to_string();
    for (kind, ids) in [("kind.left", &mut lefts), ("kind.right", &mut rights)] {
        let id = format!("record-of-{kind}");
        let properties = with_id(&id)
            .with_type(kind.into())
            .with_content_type("application/vnd.garenne.batch+json".into())
            .with_headers(headers([(header::LANE, text("fast"))]));
        env.client().publish("", QUARANTINE, properties, batch.replace("record", &id).as_bytes()).await?;
        ids.push(id);
    }
    let all: Vec<_> = lefts.iter().chain(&rights).cloned().collect();
    until_all_done(&env, &all, &[&left, &right]).await?;
    assert_eq!(done(&[&left])?, lefts.into_iter().collect());
    assert_eq!(done(&[&right])?, rights.into_iter().collect());
    tokio::try_join!(left.stop(), right.stop())?;
    env.is_empty("garenne.retry.quarantine.1s").await
}

/// Any worker that receives the poison task can count its crashes.
#[tokio::test]
async fn poison_becomes_a_dead_letter_on_a_worker_without_its_handler() -> Result<()> {
    let env = TestEnv::new().await?;
    let other = env.worker_of_kinds("other", &["kind.other"])?.stdout().start().await?;
    quarantine(&env, "bench.abort", &json!({}), "poison", 1).await?;
    for n in 0..2 {
        let plan = env.worker(&format!("crashing-{n}"))?.stdout();
        plan.begin().await?.crashed().await?;
    }
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("poison-0", "poison"));
    assert_eq!(dead.text("garenne-worker"), "other");
    other.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_kind_without_a_handler_becomes_a_dead_letter_after_ten_minutes() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = start(&env, "worker").await?;
    quarantine(&env, "kind.unknown", &json!({}), "fresh", 1).await?;
    let long_ago = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())? - 11 * 60 * 1000;
    let marks =
        headers([(header::LANE, text("fast")), (header::UNHANDLED_SINCE, AMQPValue::LongLongInt(long_ago))]);
    quarantine_with(&env, "kind.unknown", &json!({}), "old", 1, &marks).await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("old-0", "unknown-kind"));
    let waiting = "garenne.retry.quarantine.1s";
    eventually("the new task waits", async || {
        let ready = env.client().ready(waiting).await?;
        Ok(Seen::when(ready == 1, ready))
    })
    .await?;
    worker.stop().await?;
    Ok(())
}

/// The topology of an earlier version has only the shortest delay, and this worker may not create the others.
#[tokio::test]
async fn a_worker_starts_on_the_topology_of_an_earlier_version_and_keeps_quarantined_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = |name| Ok::<_, anyhow::Error>(env.worker(name)?.env("GARENNE_UNKNOWN_KIND_WAIT", "10s"));
    plan("first")?.start().await?.stop().await?;
    for delay in ["5s", "15s", "1m", "5m"] {
        let queue = format!("garenne.retry.quarantine.{delay}");
        env.vhost().broker().management().delete(&["queues", env.vhost().name(), &queue]).await?;
    }
    let mut worker = plan("limited")?.start().await?;
    worker.until_logged("garenne.retry.quarantine.5s").await?;
    let ids = quarantine(&env, "kind.unknown", &json!({}), "waiting", 3).await?;
    let dead = env.take_all("garenne.dead", 3).await?;
    let found: BTreeSet<_> = dead.iter().map(|letter| letter.id().to_owned()).collect();
    assert_eq!(found, ids.into_iter().collect());
    ensure!(dead.iter().all(|letter| letter.text("garenne-reason") == "unknown-kind"), "{dead:?}");
    worker.until_ready().await?;
    worker.stop().await?;
    env.is_empty("garenne.retry.quarantine.1s").await
}

/// Retries and deferrals remove every header of the quarantine.
#[tokio::test]
async fn tasks_leave_the_quarantine_without_its_headers() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("worker")?.stdout().env("GARENNE_RETRY__DELAYS", "15s");
    // Declares the topology; the worker under test reads the pause before it receives a task.
    env.worker("first")?.env("GARENNE_RETRY__DELAYS", "15s").start().await?.stop().await?;
    env.garenne(&["group", "pause", "paused"]).await?;
    let worker = plan.start().await?;
    let crashed = "crashed/0195f0c2-7a10-7000-8000-00000000002a";
    let marks = |more: &[(&'static str, AMQPValue)]| {
        let mut marks = headers([
            (header::LANE, text("fast")),
            (header::QUARANTINE_RUNS, AMQPValue::LongUInt(1)),
            (header::QUARANTINE_WORKER, text(crashed)),
        ]);
        for (name, value) in more {
            marks.insert((*name).into(), value.clone());
        }
        marks
    };
    let far = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())? + 3_600_000;
    quarantine_with(&env, "bench.fail", &json!({"times": 1}), "retried", 1, &marks(&[])).await?;
    let due = marks(&[(header::NOT_BEFORE, far.into())]);
    quarantine_with(&env, "bench.noop", &json!({}), "due", 1, &due).await?;
    let paused = marks(&[(header::GROUP, text("paused"))]);
    quarantine_with(&env, "bench.noop", &json!({}), "paused", 1, &paused).await?;
    let left = env.take_all("garenne.retry.fast.15s", 3).await?;
    for task in &left {
        let marked = [header::QUARANTINE_RUNS, header::QUARANTINE_WORKER, header::UNHANDLED_SINCE];
        ensure!(!marked.iter().any(|mark| task.has(mark)), "{task:?}");
    }
    worker.stop().await?;
    Ok(())
}
