//! The Postgres sink: effects happen once, a conflicting value becomes a dead letter, an outage only delays results.

use anyhow::Result;
use garenne_tests::harness::{
    client::with_id,
    fault_proxy::FaultProxy,
    postgres::{Database, Postgres},
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::WorkerPlan,
};
use serde_json::json;

fn storing(env: &TestEnv, name: &str, database: &Database) -> Result<WorkerPlan> {
    Ok(env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url()))
}

async fn reading(env: &TestEnv, id: &str, second: usize, value: f64) -> Result<()> {
    let time = 1_790_000_000 + second;
    let body = json!({"device": "d1", "metric": "temperature", "value": value, "unit": "Cel", "time": time});
    let body = body.to_string();
    env.client().publish("garenne.tasks", "reading.process", with_id(id), body.as_bytes()).await
}

#[tokio::test]
async fn a_repeated_reading_is_stored_once_and_another_value_is_a_conflict() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(&env, "storing", &database)?.start().await?;
    reading(&env, "first", 1, 20.5).await?;
    env.until_settled(1).await?;
    // The same task again, and the same reading under another id: both are accepted, and no reading is added.
    reading(&env, "first", 1, 20.5).await?;
    reading(&env, "again", 1, 20.5).await?;
    reading(&env, "contradiction", 1, 21.0).await?;
    reading(&env, "other", 2, 21.0).await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("contradiction", "conflict"));
    let error = dead.text("garenne-error");
    assert_eq!(error, "conflicting value for d1 temperature: stored 20.5, received 21");
    env.until_settled(5).await?;

    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.dead), (5, 4, 1));
    assert_eq!(database.count("garenne_readings").await?, 2);
    assert_eq!(database.count("garenne_results").await?, 3);
    let stored = database.connect().await?;
    let stored = stored.query("SELECT value, task_id FROM garenne_readings ORDER BY time", &[]).await?;
    let stored: Vec<(f64, &str)> = stored.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(stored, [(20.5, "first"), (21.0, "other")]);
    Ok(())
}

/// A task that contradicts itself keeps the first value, and only the other one is a dead letter. Its replay is a conflict.
#[tokio::test]
async fn a_value_that_contradicts_its_own_task_is_a_dead_letter_alone() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(&env, "storing", &database)?.start().await?;
    let pack = r#"[{"bn":"d/","bt":1790000000,"n":"t","v":1},{"n":"t","v":2},{"n":"p","v":3}]"#;
    let properties = with_id("task").with_content_type("application/senml+json".into());
    env.client().publish("garenne.tasks", "reading.process", properties, pack.as_bytes()).await?;
    let letter = env.take_all("garenne.dead", 1).await?.remove(0);
    let error =
        "record 1: value: device \"d\" has another value of metric \"t\" at this time; the first one counts";
    assert_eq!(
        (letter.text("garenne-reason"), letter.text("garenne-error")),
        ("conflict".into(), error.into())
    );
    env.until_settled(1).await?;
    assert_eq!(database.count("garenne_results").await?, 1);
    assert_eq!(
        database.text("SELECT string_agg(value::text, ' ' ORDER BY value) FROM garenne_readings").await?,
        "1 3"
    );
    let body = br#"{"device":"d","metric":"t","value":2.0,"time":"2026-09-21T14:13:20Z"}"#;
    assert_eq!(
        (letter.body.as_slice(), letter.properties.content_type().as_ref().map(|it| it.as_str())),
        (&body[..], Some("application/json"))
    );
    let id = with_id(letter.id());
    env.client().publish("garenne.tasks", "reading.process", id, &letter.body).await?;
    let again = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!(again.text("garenne-error"), "conflicting value for d t: stored 1, received 2");
    assert_eq!(worker.stop().await?.receipt.acked, 1);
    Ok(())
}

#[tokio::test]
async fn a_conflicting_value_replaces_the_stored_one_if_configured() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(&env, "replacing", &database)?.env("GARENNE_ON_CONFLICT", "replace").start().await?;
    reading(&env, "first", 1, 20.5).await?;
    env.until_settled(1).await?;
    reading(&env, "correction", 1, 21.0).await?;
    env.until_settled(2).await?;
    assert_eq!(worker.stop().await?.receipt.acked, 2);
    let row = database.connect().await?.query_one("SELECT value, task_id FROM garenne_readings", &[]).await?;
    assert_eq!((row.get::<_, f64>(0), row.get::<_, &str>(1)), (21.0, "correction"));
    Ok(())
}

/// A value that Postgres cannot store makes only its own task a dead letter, not those of the same write.
#[tokio::test]
async fn a_result_that_cannot_be_stored_is_rejected_alone() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let (proxy, url) = FaultProxy::for_url(&database.url()).await?;
    let plan = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", url);
    let worker = plan.start().await?;
    // Results that accumulate during the stall are written together.
    proxy.stall();
    for n in 0..20 {
        let body = if n == 7 { json!({"text": "\u{0}"}) } else { json!({"n": n}) }.to_string();
        let id = with_id(&format!("t{n}"));
        env.client().publish("garenne.tasks", "bench.echo", id, body.as_bytes()).await?;
    }
    env.until_lane("fast", 0, 20).await?;
    proxy.heal();
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("t7", "rejected"));
    env.until_settled(20).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.dead), (20, 19, 1), "{receipt:?}");
    assert_eq!(database.count("garenne_results").await?, 19);
    Ok(())
}

/// During an outage of Postgres, the worker holds one prefetch and the broker keeps the rest. Afterwards every result
/// is stored once.
#[tokio::test]
async fn an_outage_of_postgres_causes_backpressure() -> Result<()> {
    let env = TestEnv::new().await?;
    let server = Postgres::start().await?;
    let database = server.database().await?;
    let plan = storing(&env, "waiting", &database)?.lane("fast:prefetch=20,concurrency=2..2");
    let worker = plan.start().await?;
    reading(&env, "before", 0, 1.0).await?;
    env.until_settled(1).await?;
    server.kill().await?;
    for n in 1..=100 {
        reading(&env, &format!("r{n}"), n, 1.0).await?;
    }
    env.until_lane("fast", 80, 20).await?;
    assert_eq!(worker.get("/livez").await?, "ok\n");
    server.restart().await?;
    env.until_settled(101).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.dead), (101, 101, 0), "{receipt:?}");
    assert_eq!(database.count("garenne_readings").await?, 101);
    assert_eq!(database.count("garenne_results").await?, 101);
    Ok(())
}

/// The database hangs while its connections stay open. A write times out after half a minute and its connection is
/// closed. When the database answers again, the results are stored once.
#[tokio::test]
async fn a_write_that_hangs_times_out_and_closes_its_connection() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let plan = storing(&env, "waiting", &database)?.lane("fast:prefetch=20,concurrency=2..2");
    let worker = plan.start().await?;
    reading(&env, "before", 0, 1.0).await?;
    env.until_settled(1).await?;
    // Another session's lock: the server accepts the statement and does not answer.
    let locking = database.connect().await?;
    locking.batch_execute("BEGIN; LOCK TABLE garenne_results IN ACCESS EXCLUSIVE MODE").await?;
    for n in 1..=50 {
        reading(&env, &format!("r{n}"), n, 1.0).await?;
    }
    env.until_lane("fast", 30, 20).await?;
    let hanging =
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    // On another connection, because within a transaction pg_stat_activity does not change.
    let monitoring = database.connect().await?;
    let pids = async || {
        let rows = monitoring.query(hanging, &[]).await?;
        anyhow::Ok(rows.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>())
    };
    let first = eventually("a write hangs", async || {
        let pids = pids().await?;
        Ok(if pids.is_empty() { Seen::Other("none".to_owned()) } else { Seen::Wanted(pids) })
    })
    .await?;
    // A write on another connection shows that the first one timed out.
    let logged = worker.until_logged("not done within 30s").await?;
    eventually("a write on another connection hangs", async || {
        let pids = pids().await?;
        Ok(Seen::when(pids.iter().any(|pid| !first.contains(pid)), format_args!("{pids:?}, {logged}")))
    })
    .await?;
    env.until_lane("fast", 30, 20).await?;
    assert_eq!(worker.get("/livez").await?, "ok\n");
    locking.batch_execute("ROLLBACK").await?;
    env.until_settled(51).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.dead), (51, 51, 0), "{receipt:?}");
    assert_eq!(database.count("garenne_readings").await?, 51);
    assert_eq!(database.count("garenne_results").await?, 51);
    Ok(())
}

/// A stop does not wait for ever for Postgres: tasks whose results are not stored are requeued.
#[tokio::test]
async fn shutdown_during_an_outage_of_postgres_requeues_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let server = Postgres::start().await?;
    let database = server.database().await?;
    let plan = storing(&env, "waiting", &database)?.lane("fast:prefetch=20,concurrency=2..2");
    let worker = plan.option("--shutdown-timeout", "1s").start().await?;
    server.kill().await?;
    for n in 0..10 {
        reading(&env, &format!("r{n}"), n, 1.0).await?;
    }
    env.until_lane("fast", 0, 10).await?;
    let stopped = worker.stop().await?;
    let receipt = stopped.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.requeued), (10, 0, 10), "{receipt:?}");
    env.until_lane("fast", 10, 0).await
}
