//! Batches: several tasks in one message. Each record has its own outcome; the message is settled once.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use garenne_tests::harness::{
    client::with_id,
    postgres::{Database, Postgres},
    process::Signal,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::{Worker, WorkerPlan},
};
use serde_json::{Value, json};

const BATCH: &str = "application/vnd.garenne.batch+json";

/// Publishes a batch as any client can.
async fn publish_batch(env: &TestEnv, kind: &str, id: &str, records: &[(String, Value)]) -> Result<()> {
    let records: Vec<_> = records.iter().map(|(id, payload)| json!({"id": id, "payload": payload})).collect();
    let properties = with_id(id).with_content_type(BATCH.into()).with_type(kind.into());
    let body = serde_json::to_vec(&records)?;
    env.client().publish("garenne.tasks", kind, properties, &body).await
}

fn records<const N: usize>(records: [(&str, Value); N]) -> Vec<(String, Value)> {
    records.map(|(id, payload)| (id.to_owned(), payload)).into()
}

async fn outcomes(worker: &Worker, kind: &str, outcome: &str) -> Result<f64> {
    let labels = [format!("kind=\"{kind}\""), format!("outcome=\"{outcome}\"")];
    worker.metric("garenne_tasks_total", &[&labels[0], &labels[1]]).await
}

#[tokio::test]
async fn batches_are_acked_once_and_only_a_failed_record_is_retried() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("worker")?.stdout().start().await?;
    let steps = [("fine", 0), ("fails", 2), ("fine-too", 0)].map(|(id, times)| (id, json!({"times": times})));
    publish_batch(&env, "bench.fail", "batch-1", &records(steps)).await?;
    let failed = worker.until_done_with("fails").await?;
    assert_eq!((failed.attempt, failed.output), (3, json!({"attempt": 3})));
    let done = worker.done()?;
    let attempts: BTreeMap<_, _> = done.iter().map(|it| (it.task_id.as_str(), it.attempt)).collect();
    assert_eq!(attempts, BTreeMap::from([("fails", 3), ("fine", 1), ("fine-too", 1)]));
    assert_eq!(done.len(), 3, "a record ran again");

    let steps = [("a", json!({"n": 5})), ("bad", json!({"n": "five"})), ("b", json!({"n": 200}))];
    publish_batch(&env, "bench.factorial", "batch-2", &records(steps)).await?;
    let mut dead = env.take_all("garenne.dead", 2).await?;
    dead.sort_by_key(|letter| letter.id().to_owned());
    for (letter, (id, body)) in dead.iter().zip([("b", json!({"n": 200})), ("bad", json!({"n": "five"}))]) {
        assert_eq!((letter.id(), letter.text("garenne-reason").as_str()), (id, "invalid-payload"));
        let written = letter.properties.content_type().as_ref().map(|it| it.as_str());
        assert_eq!(written, Some("application/json"));
        assert_eq!(serde_json::from_slice::<Value>(&letter.body)?, body);
    }
    worker.until_done_with("a").await?;
    env.until_lane("fast", 0, 0).await?;
    assert_eq!(outcomes(&worker, "bench.factorial", "success").await?, 1.0);
    assert_eq!(outcomes(&worker, "bench.factorial", "rejected").await?, 2.0);
    assert_eq!(outcomes(&worker, "bench.fail", "error").await?, 2.0);
    let receipt = worker.stop().await?.receipt;
    // Two batches, and two retries of the record that failed.
    assert_eq!((receipt.delivered, receipt.acked, receipt.retried), (4, 3, 1), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn batches_that_cannot_be_parsed_become_one_dead_letter_each() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("worker")?.stdout().start().await?;
    let properties = with_id("torn").with_content_type(BATCH.into());
    env.client().publish("garenne.tasks", "bench.noop", properties, b"[{\"id\":\"a\",\"payl").await?;
    publish_batch(&env, "bench.noop", "empty", &[]).await?;
    let mut dead = env.take_all("garenne.dead", 2).await?;
    dead.sort_by_key(|letter| letter.id().to_owned());
    let shown = |n: usize| (dead[n].id(), dead[n].text("garenne-reason"), dead[n].text("garenne-error"));
    let malformed = "malformed".to_owned();
    assert_eq!(
        shown(0),
        ("empty", malformed.clone(), "batch has 0 records, 1 to 1000 are allowed".to_owned())
    );
    assert_eq!((shown(1).0, shown(1).1), ("torn", malformed));
    assert_eq!(worker.stop().await?.receipt.dead, 2);
    Ok(())
}

#[tokio::test]
async fn batches_skip_records_that_an_operator_stopped() -> Result<()> {
    let env = TestEnv::new().await?;
    // Declares the topology.
    env.worker("first")?.start().await?.stop().await?;
    env.garenne(&["task", "stop", "unwanted"]).await?;
    let steps = [("before", json!({})), ("unwanted", json!({})), ("after", json!({}))];
    publish_batch(&env, "bench.noop", "batch", &records(steps)).await?;
    let worker = env.worker("worker")?.stdout().start().await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("unwanted", "stopped"));
    env.until_lane("fast", 0, 0).await?;
    let stopped = worker.stop().await?;
    assert_eq!(stopped.ids(), ["before", "after"]);
    assert_eq!(stopped.receipt.acked, 1);
    Ok(())
}

#[tokio::test]
async fn batches_of_long_tasks_are_split_into_messages() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("worker")?.stdout().lane("fast:prefetch=4,concurrency=1..2").start().await?;
    let many: Vec<_> = (0..50).map(|n| (format!("long-{n}"), json!({"ms": 1}))).collect();
    publish_batch(&env, "bench.sleep", "batch", &many).await?;
    let done: BTreeSet<_> = worker.until_done(50).await?.into_iter().map(|done| done.task_id).collect();
    assert_eq!(done, many.into_iter().map(|(id, _)| id).collect());
    env.until_lane("fast", 0, 0).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.retried), (51, 50, 1), "{receipt:?}");
    Ok(())
}

/// The batch crashes two workers in its lane and one in the quarantine. Then its records are published one by one.
#[tokio::test]
async fn batches_that_crash_workers_are_split_and_only_the_crashing_record_becomes_a_dead_letter()
-> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    let harmless = json!({"spare": true});
    let steps =
        [("a", harmless.clone()), ("b", harmless.clone()), ("crashing", json!({})), ("c", harmless.clone())];
    publish_batch(&env, "bench.abort", "crashing-batch", &records(steps)).await?;
    let others: Vec<_> = (0..20).map(|n| (format!("other-{n}"), harmless.clone())).collect();
    publish_batch(&env, "bench.abort", "harmless-batch", &others).await?;
    let expected: BTreeSet<String> =
        others.into_iter().map(|(id, _)| id).chain(["a", "b", "c"].map(str::to_owned)).collect();
    let mut done = BTreeSet::new();
    let mut crashes = 0;
    loop {
        let plan = env.worker(&format!("crashing-{crashes}"))?.stdout().option("--shutdown-mode", "soft");
        let worker = plan.begin().await?;
        let crashed = eventually("a crash, or every task settled", async || {
            if worker.has_ended() {
                return Ok(Seen::Wanted(true));
            }
            let dead = env.client().ready("garenne.dead").await?;
            let all: BTreeSet<_> =
                worker.done()?.into_iter().map(|it| it.task_id).chain(done.iter().cloned()).collect();
            Ok(if dead == 1 && all == expected {
                Seen::Wanted(false)
            } else {
                Seen::Other(format!("{dead} dead, {} done", all.len()))
            })
        })
        .await?;
        if !crashed {
            done.extend(worker.stop().await?.done.into_iter().map(|done| done.task_id));
            break;
        }
        crashes += 1;
        assert!(crashes < 10, "the record still crashes workers");
        done.extend(worker.crashed().await?.into_iter().map(|done| done.task_id));
    }
    assert_eq!(done, expected);
    assert!((4..=7).contains(&crashes), "{crashes} workers crashed");
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("crashing", "poison"));
    env.until_lane("fast", 0, 0).await?;
    env.is_empty("garenne.quarantine").await
}

fn storing(env: &TestEnv, name: &str, database: &Database) -> Result<WorkerPlan> {
    let plan = env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url());
    Ok(plan.lane(&format!("fast:prefetch={PREFETCH},concurrency=2..2")))
}

async fn until_stored(database: &Database, at_least: usize) -> Result<()> {
    let client = database.connect().await?;
    eventually(format!("{at_least} results"), async || {
        let stored = client.query_one("SELECT count(*) FROM garenne_results", &[]).await?.get::<_, i64>(0);
        Ok(Seen::when(stored >= at_least as i64, stored))
    })
    .await
}

/// Batches that are published before a worker is frozen, and while it is: more than its prefetch.
const ROUND: (usize, usize) = (15, 75);
const RECORDS: usize = 40;
/// So many that a worker rarely starts all of them between its continuation and the stop.
const PREFETCH: u64 = 60;

/// Publishes batches of readings. Each batch repeats its first reading under another id, which must not be stored as a
/// second row, and has a record that contradicts it.
async fn publish_readings(env: &TestEnv, batches: std::ops::Range<usize>) -> Result<()> {
    for n in batches {
        let reading = |m: usize| {
            let time = 1_790_000_000 + n * RECORDS + m;
            (format!("r-{n}-{m}"), json!({"device": "d", "metric": "t", "value": m, "time": time}))
        };
        let mut readings: Vec<_> = (0..RECORDS).map(reading).collect();
        let (_, first) = readings[0].clone();
        readings.push((format!("again-{n}"), first.clone()));
        let mut other = first;
        other["value"] = json!(-1);
        readings.push((format!("conflict-{n}"), other));
        publish_batch(env, "reading.process", &format!("batch-{n}"), &readings).await?;
    }
    Ok(())
}

/// Publishes a round of batches and freezes the worker in the middle of it while it holds its whole prefetch.
async fn freeze_in_the_middle(
    env: &TestEnv,
    database: &Database,
    worker: &Worker,
    batches: &mut usize,
) -> Result<()> {
    let before = database.count("garenne_results").await?;
    publish_readings(env, *batches..*batches + ROUND.0).await?;
    until_stored(database, usize::try_from(before)? + 1).await?;
    worker.signal(Signal::STOP)?;
    publish_readings(env, *batches + ROUND.0..*batches + ROUND.0 + ROUND.1).await?;
    *batches += ROUND.0 + ROUND.1;
    env.freeze_holding(worker, PREFETCH).await
}

/// Waits until the worker has received these redeliveries.
async fn until_redelivered(worker: &Worker, at_least: u64) -> Result<()> {
    eventually(format!("{at_least} redelivered batches"), async || {
        let redelivered = worker.metric("garenne_redeliveries_total", &[]).await?;
        Ok(Seen::when(redelivered >= at_least as f64, redelivered))
    })
    .await
}

/// Workers are killed and stopped in every mode in the middle of their work; each record is stored exactly once.
#[tokio::test]
async fn batches_survive_a_kill_and_every_stop_mode_and_are_stored_once() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let mut batches = 0;
    let worker = storing(&env, "victim", &database)?.start().await?;
    freeze_in_the_middle(&env, &database, &worker, &mut batches).await?;
    worker.kill().await?;
    let mut left = PREFETCH;
    for mode in ["light", "soft", "soft-timeout", "hard"] {
        let plan = storing(&env, mode, &database)?.option("--shutdown-mode", mode);
        let worker = plan.start().await?;
        until_redelivered(&worker, left).await?;
        freeze_in_the_middle(&env, &database, &worker, &mut batches).await?;
        env.stop_frozen(&worker)?;
        let receipt = worker.stopped().await?.receipt;
        assert_eq!((receipt.mode.as_str(), receipt.abandoned), (mode, 0), "{receipt:?}");
        assert!(receipt.acked > 0, "{receipt:?}");
        // On a busy machine a worker may have started all of them before it notices the stop.
        left = receipt.requeued;
    }
    let worker = storing(&env, "last", &database)?.start().await?;
    until_redelivered(&worker, left).await?;
    until_stored(&database, batches * (RECORDS + 1)).await?;
    env.until_lane("fast", 0, 0).await?;
    worker.stop().await?;
    assert_eq!(database.count("garenne_readings").await?, (batches * RECORDS) as i64);
    let results = (batches * (RECORDS + 1)) as i64;
    assert_eq!(database.count("(SELECT DISTINCT task_id FROM garenne_results) AS ids").await?, results);
    assert_eq!(database.count("garenne_results").await?, results);
    let mut conflicts = BTreeSet::new();
    while let Some(letter) = env.client().take("garenne.dead").await? {
        assert_eq!(letter.text("garenne-reason"), "conflict");
        conflicts.insert(letter.id().to_owned());
    }
    assert_eq!(conflicts.len(), batches);
    assert!(conflicts.iter().all(|id| id.starts_with("conflict-")), "{conflicts:?}");
    Ok(())
}
