//! Windows of stored readings: in one unit, without flagged readings, and refused if they are too large.

use anyhow::{Context, Result};
use garenne_tests::harness::{
    client::with_id,
    postgres::{Database, Postgres},
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::Worker,
};
use serde_json::{Value, json};

const FIRST_SECOND: i64 = 1_790_000_000;

async fn storing(env: &TestEnv, database: &Database) -> Result<Worker> {
    let plan = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", database.url());
    plan.start().await
}

async fn publish(env: &TestEnv, id: &str, kind: &str, payload: &Value) -> Result<()> {
    env.client().publish("garenne.tasks", kind, with_id(id), payload.to_string().as_bytes()).await
}

/// Asks for the window of a metric, with further fields.
async fn ask(env: &TestEnv, id: &str, metric: &str, seconds: [i64; 2], fields: Value) -> Result<()> {
    let [from, to] = seconds.map(|second| FIRST_SECOND + second);
    let mut payload = json!({"device": "boiler", "metric": metric, "from": from, "to": to});
    let whole = payload.as_object_mut().context("an object")?;
    whole.extend(fields.as_object().cloned().unwrap_or_default());
    publish(env, id, "window.analyze", &payload).await
}

/// Waits for the stored result of a task.
async fn answer(database: &Database, id: &str) -> Result<Value> {
    let client = database.connect().await?;
    eventually(&format!("the result of {id}"), async || {
        let rows =
            client.query("SELECT output::text FROM garenne_results WHERE task_id = $1", &[&id]).await?;
        Ok(rows
            .first()
            .map_or_else(|| Seen::Other("none".to_owned()), |row| Seen::Wanted(row.get::<_, String>(0))))
    })
    .await
    .and_then(|output| Ok(serde_json::from_str(&output)?))
}

/// Waits for a dead letter. Returns its reason and its error.
async fn refusal(env: &TestEnv, id: &str) -> Result<(String, String)> {
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!(dead.id(), id);
    Ok((dead.text("garenne-reason"), dead.text("garenne-error")))
}

#[tokio::test]
async fn a_window_is_in_one_unit_and_leaves_flagged_readings_out() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(&env, &database).await?;
    let reading = |second: i64, metric: &str, value: f64, unit: &str| {
        let time = FIRST_SECOND + second;
        json!({"device": "boiler", "metric": metric, "value": value, "unit": unit, "time": time})
    };
    let given = [
        reading(0, "temperature", 68.0, "degF"),
        reading(1, "temperature", -300.0, "Cel"),
        reading(2, "temperature", 294.15, "K"),
        reading(3, "temperature", 22.0, "Cel"),
        reading(0, "flow", 1.0, "l/s"),
        reading(1, "flow", 50.0, "%RH"),
    ];
    for (reading, index) in given.iter().zip(0..) {
        publish(&env, &format!("reading-{index}"), "reading.process", reading).await?;
    }
    for index in 0..given.len() {
        answer(&database, &format!("reading-{index}")).await?;
    }
    let window = async |id: &str, fields: Value| {
        ask(&env, id, "temperature", [0, 10], fields).await?;
        answer(&database, id).await
    };
    let numbers = |answer: &Value| {
        let rounded = |name: &str| answer[name].as_f64().map(|value| (value * 1e6).round() / 1e6);
        (rounded("min"), rounded("max"), answer["count"].as_u64(), answer["missing"].as_u64())
    };
    // In the unit of the newest one.
    let newest = window("newest", json!({})).await?;
    assert_eq!((&newest["unit"], &newest["left_out"]), (&json!("Cel"), &json!(1)));
    assert_eq!(numbers(&newest), (Some(20.0), Some(22.0), Some(3), Some(0)));
    let kelvin = window("kelvin", json!({"unit": "K", "flagged": "exclude"})).await?;
    assert_eq!((&kelvin["unit"], &kelvin["left_out"]), (&json!("K"), &json!(1)));
    assert_eq!(numbers(&kelvin), (Some(293.15), Some(295.15), Some(3), Some(0)));
    let included = window("included", json!({"flagged": "include"})).await?;
    assert_eq!((&included["unit"], &included["left_out"]), (&json!("Cel"), &json!(0)));
    assert_eq!(numbers(&included), (Some(-300.0), Some(22.0), Some(4), Some(0)));

    ask(&env, "mixed", "flow", [0, 10], json!({})).await?;
    let (reason, error) = refusal(&env, "mixed").await?;
    assert_eq!(reason, "rejected");
    assert!(
        error.starts_with("unit: 1 of 2 readings cannot be converted to %RH") && error.contains("is in l/s"),
        "{error}"
    );
    worker.stop().await?;
    env.is_empty("garenne.dead").await
}

/// One reading more than a window may have is refused without reading any of them, even by a worker that has no memory
/// for them. Flagged readings count, so that the query reads no more than the limit beside any flagged history.
#[tokio::test]
async fn a_window_of_too_many_readings_is_refused_before_it_is_loaded() -> Result<()> {
    const LIMIT: i64 = 1_000_000;
    const MEMORY: u64 = 48 << 20;
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(&env, &database).await?;
    let insert =
        "INSERT INTO garenne_readings (device, metric, time, value, unit, raw, quality, task_id, worker)
         SELECT 'boiler', 'temperature', to_timestamp($1::float8 + second), 20 + second % 7, 'Cel', 20,
                CASE WHEN second > 100 THEN ARRAY['out-of-range'] ELSE '{}' END, 'given', 'test'
         FROM generate_series(0, $2::int8) AS second";
    database.connect().await?.execute(insert, &[&(FIRST_SECOND as f64), &LIMIT]).await?;
    ask(&env, "before", "temperature", [0, 50], json!({})).await?;
    assert_eq!(answer(&database, "before").await?["count"], json!(50));
    worker.limit_memory(MEMORY)?;

    ask(&env, "whole", "temperature", [0, LIMIT + 1], json!({})).await?;
    let (reason, error) = refusal(&env, "whole").await?;
    assert_eq!(reason, "rejected");
    assert_eq!(
        error,
        "more than 1000000 readings of boiler temperature are stored from 2026-09-21T14:13:20Z to \
         2026-10-03T04:00:01Z, flagged ones included; at most 1000000 are allowed"
    );
    // The worker and its connection are still usable.
    ask(&env, "part", "temperature", [0, 200], json!({})).await?;
    let part = answer(&database, "part").await?;
    assert_eq!((&part["count"], &part["left_out"], &part["unit"]), (&json!(101), &json!(99), &json!("Cel")));
    worker.stop().await?;
    env.is_empty("garenne.dead").await
}

/// A server that does not answer ends no window for good: the query times out, its connection is closed, and the task is
/// retried.
#[tokio::test]
async fn a_window_of_a_server_that_hangs_times_out_and_is_retried() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(&env, &database).await?;
    let reading = json!({"device": "boiler", "metric": "temperature", "value": 20, "unit": "Cel", "time": FIRST_SECOND});
    publish(&env, "reading", "reading.process", &reading).await?;
    answer(&database, "reading").await?;
    let locking = database.connect().await?;
    locking.batch_execute("BEGIN; LOCK TABLE garenne_readings IN ACCESS EXCLUSIVE MODE").await?;
    ask(&env, "window", "temperature", [0, 10], json!({})).await?;
    // The server's time limit and the worker's are equal: either ends the attempt.
    worker.until_logged("attempt failed, will be retried").await?;
    locking.batch_execute("ROLLBACK").await?;
    assert_eq!(answer(&database, "window").await?["count"], json!(1));
    worker.stop().await?;
    env.is_empty("garenne.dead").await
}
