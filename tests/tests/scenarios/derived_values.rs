//! Values derived from temperature and humidity. The two readings of one message are two tasks; their derived values
//! are stored once, also after redeliveries, and never replace or contradict measured values.

use std::collections::BTreeMap;

use anyhow::Result;
use garenne_tests::harness::{
    client::with_id,
    gateway::GatewayPlan,
    postgres::{Database, Postgres},
    process::Signal,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::Worker,
};
use serde_json::{Value, json};

const BATCH: &str = "application/vnd.garenne.batch+json";
const DERIVED: [&str; 3] = ["absolute_humidity", "dew_point", "heat_index"];

async fn storing(env: &TestEnv, name: &str, database: &Database) -> Result<Worker> {
    let plan = env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url());
    plan.start().await
}

fn reading(second: u32, metric: &str, unit: &str, value: f64) -> Value {
    json!({"device": "hall", "metric": metric, "unit": unit, "value": value, "time": 1_790_000_000 + second})
}

/// Publishes records in one batch, as a gateway does.
async fn publish_batch(env: &TestEnv, id: &str, records: &[(&str, Value)]) -> Result<()> {
    let records: Vec<_> = records.iter().map(|(id, payload)| json!({"id": id, "payload": payload})).collect();
    let properties = with_id(id).with_content_type(BATCH.into()).with_type("reading.process".into());
    let body = serde_json::to_vec(&records)?;
    env.client().publish("garenne.tasks", "reading.process", properties, &body).await
}

/// The stored values of one second by metric, each with whether it was measured.
async fn stored(database: &Database, second: u32) -> Result<BTreeMap<String, (f64, bool)>> {
    let rows = database
        .connect()
        .await?
        .query(
            "SELECT metric, value, raw IS NOT NULL FROM garenne_readings
             WHERE time = to_timestamp($1::float8)",
            &[&f64::from(1_790_000_000 + second)],
        )
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect())
}

fn derived(stored: &BTreeMap<String, (f64, bool)>) -> Vec<&str> {
    stored.iter().filter(|(_, (_, measured))| !measured).map(|(metric, _)| metric.as_str()).collect()
}

#[tokio::test]
async fn derived_values_of_repeated_requests_are_stored_once() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let worker = storing(&env, "storing", &database).await?;
    let senml = json!([
        {"bn": "hall:", "bt": 1_790_000_000, "n": "temperature", "u": "Cel", "v": 20.0},
        {"n": "humidity", "u": "%RH", "v": 50.0}
    ])
    .to_string();
    for _ in 0..2 {
        let answer = gateway.post("/v1/readings", "application/senml+json", senml.as_str()).await?;
        assert_eq!(answer.ids()?.len(), 2, "a receipt for each reading");
    }
    // Over TCP too, where one line is one message.
    let line = json!([reading(1, "temperature", "Cel", 25.0), reading(1, "humidity", "%RH", 50.0)]);
    let answers = gateway.lines(&[&line.to_string()]).await?;
    assert!(answers[0].starts_with("ok "), "{answers:?}");
    env.until_lane("fast", 0, 0).await?;
    eventually("the values of both pairs", async || {
        let (first, second) = (stored(&database, 0).await?, stored(&database, 1).await?);
        Ok(Seen::when(first.len() + second.len() == 10, format_args!("{first:?} {second:?}")))
    })
    .await?;
    let first = stored(&database, 0).await?;
    assert_eq!(derived(&first), DERIVED);
    assert!((first["dew_point"].0 - 9.255).abs() < 0.001, "{first:?}");
    gateway.stop().await?;
    worker.stop().await?;
    assert_eq!(database.count("garenne_readings").await?, 10);
    env.is_empty("garenne.dead").await
}

/// A worker is killed while it holds batches; the worker that receives them next derives the same values.
#[tokio::test]
async fn derived_values_survive_a_kill_of_their_worker() -> Result<()> {
    const BATCHES: u32 = 300;
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let victim = storing(&env, "victim", &database).await?;
    for n in 0..BATCHES {
        let (warm, damp) = (reading(n, "temperature", "Cel", 20.0), reading(n, "humidity", "%RH", 50.0));
        let (t, h) = (format!("t-{n}"), format!("h-{n}"));
        publish_batch(&env, &format!("batch-{n}"), &[(&t, warm), (&h, damp)]).await?;
        if n == BATCHES - 80 {
            env.until_settled(10).await?;
            // The rest is published while it is stopped, so that it holds unfinished batches when it is killed.
            victim.signal(Signal::STOP)?;
        }
    }
    env.freeze_holding(&victim, 50).await?;
    victim.kill().await?;
    let second = storing(&env, "second", &database).await?;
    database.until_count("garenne_readings", i64::from(5 * BATCHES)).await?;
    env.until_lane("fast", 0, 0).await?;
    let redelivered = second.metric("garenne_redeliveries_total", &[]).await?;
    assert!(redelivered >= 50.0, "{redelivered} redeliveries");
    second.stop().await?;
    env.is_empty("garenne.dead").await
}

#[tokio::test]
async fn derived_values_never_conflict_and_are_replaced_by_measured_ones() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(&env, "storing", &database).await?;
    let settled = async |count| env.until_settled(count).await;
    let (warm, damp) = (reading(0, "temperature", "Cel", 20.0), reading(0, "humidity", "%RH", 50.0));
    publish_batch(&env, "pair", &[("t", warm.clone()), ("h", damp.clone())]).await?;
    settled(1).await?;
    assert_eq!(derived(&stored(&database, 0).await?), DERIVED);

    // The device sends its own measured dew point later, which replaces the derived one.
    publish_batch(&env, "late", &[("own", reading(0, "dew_point", "Cel", 9.5)), ("again", damp)]).await?;
    settled(2).await?;
    let now = stored(&database, 0).await?;
    assert_eq!((now["dew_point"], now.len()), ((9.5, true), 5), "{now:?}");
    // It stays when the pair arrives again under other ids.
    publish_batch(&env, "pair-again", &[("t-2", warm), ("h-2", reading(0, "humidity", "%RH", 50.0))]).await?;
    settled(3).await?;
    assert_eq!(stored(&database, 0).await?, now);
    env.is_empty("garenne.dead").await?;

    // A temperature that contradicts the stored one becomes a dead letter, and no value is derived from it. The other
    // reading of its batch is stored.
    publish_batch(&env, "alone", &[("t-3", reading(1, "temperature", "Cel", 20.0))]).await?;
    settled(4).await?;
    let wrong = reading(1, "temperature", "Cel", 30.0);
    publish_batch(&env, "wrong", &[("t-4", wrong), ("h-4", reading(1, "humidity", "%RH", 50.0))]).await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("t-4", "conflict"));
    env.until_lane("fast", 0, 0).await?;
    let now = stored(&database, 1).await?;
    let kept: Vec<_> = now.iter().map(|(metric, (value, _))| (metric.as_str(), *value)).collect();
    assert_eq!(kept, [("humidity", 50.0), ("temperature", 20.0)]);
    worker.stop().await?;
    env.is_empty("garenne.dead").await
}
