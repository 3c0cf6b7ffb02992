//! Readings that cross a rule's threshold become alerts. Each alert is sent once, in whatever order the readings
//! arrive, whichever workers process them, and whichever step between reading and webhook fails.

use std::{fs, path::PathBuf};

use anyhow::Result;
use garenne_tests::harness::{
    client::with_id,
    postgres::{Database, Postgres},
    test_env::TestEnv,
    webhook::Webhook,
    worker::WorkerPlan,
};
use serde_json::{Value, json};

pub(super) fn rules(env: &TestEnv, rule: &str) -> Result<PathBuf> {
    let path = env.folder().join("rules.toml");
    fs::write(&path, format!("[[rule]]\nname = \"r\"\nmetric = \"temperature\"\nunit = \"Cel\"\n{rule}\n"))?;
    Ok(path)
}

pub(super) fn watching(env: &TestEnv, name: &str, database: &Database, hook: &Webhook) -> Result<WorkerPlan> {
    let plan = env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url());
    Ok(plan
        .option("--rules", env.folder().join("rules.toml"))
        .env("GARENNE_ALERT__WEBHOOKS__DEFAULT__URL", hook.url()))
}

pub(super) async fn reading(env: &TestEnv, id: &str, second: i64, value: f64, unit: &str) -> Result<()> {
    publish_reading(env, id, json!({"value": value, "unit": unit, "time": 1_790_000_000 + second})).await
}

/// Publishes a reading with these fields, which replace those of an ordinary one.
pub(super) async fn publish_reading(env: &TestEnv, id: &str, fields: Value) -> Result<()> {
    let mut body = json!({"device": "d1", "metric": "temperature", "value": 20.0, "unit": "Cel"});
    for (name, value) in fields.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let body = body.to_string();
    env.client().publish("garenne.tasks", "reading.process", with_id(id), body.as_bytes()).await
}

/// State, timestamp and value of each alert.
pub(super) fn alert_summaries(alerts: &[Value]) -> Vec<(String, String, f64)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |alert: &Value| {
        let data = &alert["data"];
        (text(&data["state"]), text(&alert["timestamp"]), data["value"].as_f64().unwrap_or_default())
    };
    alerts.iter().map(one).collect()
}

#[tokio::test]
async fn two_workers_send_one_alert_per_crossing_in_any_order_of_readings() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    // Three failures, one "too many requests", then success.
    let hook = Webhook::start([(500, ""), (500, ""), (500, ""), (429, "retry-after: 0\r\n")]).await?;
    rules(&env, "above = 30\nclear = 25")?;
    let first = watching(&env, "first", &database, &hook)?.start().await?;
    let second = watching(&env, "second", &database, &hook)?.start().await?;
    // 100 °F is 37.8 °C: units are converted. Each reading is sent three times, and one is out of order.
    for round in 0..3 {
        for (second, value, unit) in [(1, 20.0, "Cel"), (3, 31.0, "Cel"), (2, 100.0, "degF")] {
            reading(&env, &format!("{round}-{second}"), second, value, unit).await?;
        }
    }
    hook.until_alerts(1).await?;
    for round in 0..3 {
        reading(&env, &format!("{round}-cool"), 4, 24.0, "Cel").await?;
    }
    env.until_settled(12).await?;
    let mut alerts = alert_summaries(&hook.until_alerts(2).await?);
    alerts.sort_by(|a, b| a.0.cmp(&b.0));
    let states: Vec<_> = alerts.iter().map(|(state, ..)| state.as_str()).collect();
    assert_eq!(states, ["cleared", "raised"], "{alerts:?}");
    env.until_lane("slow", 0, 0).await?;
    assert_eq!(hook.alerts().len(), 2);
    assert!(hook.requests() > 4);
    let alarms = database.connect().await?;
    let alarms = alarms.query("SELECT extract(epoch FROM since)::int8, extract(epoch FROM upto)::int8, extract(epoch FROM ended)::int8 FROM garenne_alarms", &[]).await?;
    let alarms: Vec<(i64, i64, i64)> =
        alarms.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(alarms, [(1_790_000_002, 1_790_000_003, 1_790_000_004)]);
    for worker in [first, second] {
        assert_eq!(worker.stop().await?.receipt.dead, 0);
    }
    Ok(())
}
