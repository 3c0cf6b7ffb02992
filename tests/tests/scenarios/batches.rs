//! Several tasks in one message: each has an end of its own, the message has one.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use garenne_tests::harness::{
    client::with_id,
    postgres::{Database, Postgres},
    process::{Program, Signal},
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::{Worker, WorkerPlan},
};
use serde_json::{Value, json};

const PACK: &str = "application/vnd.garenne.batch+json";

/// Publishes a pack as any client could.
async fn pack(env: &TestEnv, kind: &str, id: &str, records: &[(String, Value)]) -> Result<()> {
    let records: Vec<_> = records.iter().map(|(id, payload)| json!({"id": id, "payload": payload})).collect();
    let properties = with_id(id).with_content_type(PACK.into()).with_type(kind.into());
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
async fn packs_are_acked_once_and_only_the_record_that_fails_leaves() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("worker")?.stdout().start().await?;
    let steps = [("fine", 0), ("fails", 2), ("fine-too", 0)].map(|(id, times)| (id, json!({"times": times})));
    pack(&env, "bench.fail", "pack-1", &records(steps)).await?;
    let failed = worker.until_done_with("fails").await?;
    assert_eq!((failed.attempt, failed.output), (3, json!({"attempt": 3})));
    let done = worker.done()?;
    let attempts: BTreeMap<_, _> = done.iter().map(|it| (it.task_id.as_str(), it.attempt)).collect();
    assert_eq!(attempts, BTreeMap::from([("fails", 3), ("fine", 1), ("fine-too", 1)]));
    assert_eq!(done.len(), 3, "the others did not run again");

    let steps = [("a", json!({"n": 5})), ("bad", json!({"n": "five"})), ("b", json!({"n": 200}))];
    pack(&env, "bench.factorial", "pack-2", &records(steps)).await?;
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
    // Two packs, and the record that failed came by itself twice more.
    assert_eq!((receipt.delivered, receipt.acked, receipt.retried), (4, 3, 1), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn packs_that_cannot_be_read_are_dead_letters_whole() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("worker")?.stdout().start().await?;
    let properties = with_id("torn").with_content_type(PACK.into());
    env.client().publish("garenne.tasks", "bench.noop", properties, b"[{\"id\":\"a\",\"payl").await?;
    pack(&env, "bench.noop", "empty", &[]).await?;
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
async fn packs_obey_stops_of_their_records() -> Result<()> {
    let env = TestEnv::new().await?;
    // Makes the topology.
    env.worker("first")?.start().await?.stop().await?;
    let stop = Program::new("garenne").option("--amqp-url", env.vhost().amqp_url()).arg("task").arg("stop");
    let ended = stop.arg("unwanted").run().await?;
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let steps = [("before", json!({})), ("unwanted", json!({})), ("after", json!({}))];
    pack(&env, "bench.noop", "pack", &records(steps)).await?;
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
async fn packs_of_long_tasks_are_taken_apart() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("worker")?.stdout().lane("fast:prefetch=4,concurrency=1..2").start().await?;
    let many: Vec<_> = (0..50).map(|n| (format!("long-{n}"), json!({"ms": 1}))).collect();
    pack(&env, "bench.sleep", "pack", &many).await?;
    let done: BTreeSet<_> = worker.until_done(50).await?.into_iter().map(|done| done.task_id).collect();
    assert_eq!(done, many.into_iter().map(|(id, _)| id).collect());
    env.until_lane("fast", 0, 0).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.retried), (51, 50, 1), "{receipt:?}");
    Ok(())
}

/// The pack dies twice in its lane and once alone, then its records are tried one by one.
#[tokio::test]
async fn packs_that_kill_their_worker_are_taken_apart_and_only_the_guilty_record_is_condemned() -> Result<()>
{
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    let spared = json!({"spare": true});
    let steps = [("a", spared.clone()), ("b", spared.clone()), ("guilty", json!({})), ("c", spared.clone())];
    pack(&env, "bench.abort", "guilty-pack", &records(steps)).await?;
    let innocent: Vec<_> = (0..20).map(|n| (format!("innocent-{n}"), spared.clone())).collect();
    pack(&env, "bench.abort", "innocent-pack", &innocent).await?;
    let expected: BTreeSet<String> =
        innocent.into_iter().map(|(id, _)| id).chain(["a", "b", "c"].map(str::to_owned)).collect();
    let mut done = BTreeSet::new();
    let mut deaths = 0;
    loop {
        let plan = env.worker(&format!("mortal-{deaths}"))?.stdout().option("--shutdown-mode", "soft");
        let worker = plan.begin().await?;
        let died = eventually("it dies, or everything is settled", async || {
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
        if !died {
            done.extend(worker.stop().await?.done.into_iter().map(|done| done.task_id));
            break;
        }
        deaths += 1;
        assert!(deaths < 10, "it goes on killing");
        done.extend(worker.died().await?.into_iter().map(|done| done.task_id));
    }
    assert_eq!(done, expected);
    assert!((4..=7).contains(&deaths), "{deaths} workers died");
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("guilty", "poison"));
    env.until_lane("fast", 0, 0).await?;
    env.is_empty("garenne.quarantine").await
}

fn storing(env: &TestEnv, name: &str, database: &Database) -> Result<WorkerPlan> {
    let plan = env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url());
    Ok(plan.lane("fast:prefetch=20,concurrency=2..2"))
}

async fn count(database: &Database, query: &str) -> Result<i64> {
    Ok(database.connect().await?.query_one(query, &[]).await?.get(0))
}

async fn until_stored(database: &Database, at_least: usize) -> Result<()> {
    let client = database.connect().await?;
    eventually(format!("{at_least} results"), async || {
        let stored = client.query_one("SELECT count(*) FROM garenne_results", &[]).await?.get::<_, i64>(0);
        Ok(Seen::when(stored >= at_least as i64, stored))
    })
    .await
}

/// What a worker has before it is frozen, and what comes while it is: more than its prefetch.
const ROUND: (usize, usize) = (15, 25);
const RECORDS: usize = 40;
const PREFETCH: u64 = 20;

/// Publishes packs of readings. Each has a record that says the same as its first, which is no second row,
/// and one that contradicts it.
async fn publish_readings(env: &TestEnv, packs: std::ops::Range<usize>) -> Result<()> {
    for n in packs {
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
        pack(env, "reading.process", &format!("pack-{n}"), &readings).await?;
    }
    Ok(())
}

/// Publishes a round of packs and freezes the worker in the middle of it, with all that it may hold.
async fn freeze_in_the_middle(
    env: &TestEnv,
    database: &Database,
    worker: &Worker,
    packs: &mut usize,
) -> Result<()> {
    let before = count(database, "SELECT count(*) FROM garenne_results").await?;
    publish_readings(env, *packs..*packs + ROUND.0).await?;
    until_stored(database, usize::try_from(before)? + 1).await?;
    worker.signal(Signal::STOP)?;
    publish_readings(env, *packs + ROUND.0..*packs + ROUND.0 + ROUND.1).await?;
    *packs += ROUND.0 + ROUND.1;
    env.freeze_holding(worker, PREFETCH).await
}

/// Waits until the worker was given again what another one left.
async fn until_redelivered(worker: &Worker, at_least: u64) -> Result<()> {
    eventually(format!("{at_least} packs come again"), async || {
        let again = worker.metric("garenne_redeliveries_total", &[]).await?;
        Ok(Seen::when(again >= at_least as f64, again))
    })
    .await
}

/// Packs go through a kill and stops of every mode, each in the middle of the work; each record is stored, and
/// stored once.
#[tokio::test]
async fn packs_outlive_a_kill_and_every_stop_without_a_second_effect() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let mut packs = 0;
    let worker = storing(&env, "victim", &database)?.start().await?;
    freeze_in_the_middle(&env, &database, &worker, &mut packs).await?;
    worker.kill().await?;
    let mut left = PREFETCH;
    for mode in ["light", "soft", "soft-timeout", "hard"] {
        let plan = storing(&env, mode, &database)?.option("--shutdown-mode", mode);
        let worker = plan.start().await?;
        until_redelivered(&worker, left).await?;
        freeze_in_the_middle(&env, &database, &worker, &mut packs).await?;
        env.stop_frozen(&worker)?;
        let receipt = worker.stopped().await?.receipt;
        assert_eq!((receipt.mode.as_str(), receipt.abandoned), (mode, 0), "{receipt:?}");
        assert!(receipt.acked > 0, "{receipt:?}");
        // A light stop finishes what it holds; the others hand back what they had not started.
        assert!(mode == "light" || receipt.requeued > 0, "nothing was handed back: {receipt:?}");
        left = receipt.requeued;
    }
    let worker = storing(&env, "last", &database)?.start().await?;
    until_redelivered(&worker, left).await?;
    until_stored(&database, packs * (RECORDS + 1)).await?;
    env.until_lane("fast", 0, 0).await?;
    worker.stop().await?;
    assert_eq!(count(&database, "SELECT count(*) FROM garenne_readings").await?, (packs * RECORDS) as i64);
    let results = (packs * (RECORDS + 1)) as i64;
    assert_eq!(count(&database, "SELECT count(DISTINCT task_id) FROM garenne_results").await?, results);
    assert_eq!(count(&database, "SELECT count(*) FROM garenne_results").await?, results);
    let mut conflicts = BTreeSet::new();
    while let Some(letter) = env.client().take("garenne.dead").await? {
        assert_eq!(letter.text("garenne-reason"), "conflict");
        conflicts.insert(letter.id().to_owned());
    }
    assert_eq!(conflicts.len(), packs);
    assert!(conflicts.iter().all(|id| id.starts_with("conflict-")), "{conflicts:?}");
    Ok(())
}
