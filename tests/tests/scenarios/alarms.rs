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
use lapin::options::QueueDeleteOptions;
use serde_json::{Value, json};

fn rules(env: &TestEnv, rule: &str) -> Result<PathBuf> {
    let path = env.folder().join("rules.toml");
    fs::write(&path, format!("[[rule]]\nname = \"r\"\nmetric = \"temperature\"\nunit = \"Cel\"\n{rule}\n"))?;
    Ok(path)
}

fn watching(env: &TestEnv, name: &str, database: &Database, hook: &Webhook) -> Result<WorkerPlan> {
    let plan = env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url());
    Ok(plan
        .option("--rules", env.folder().join("rules.toml"))
        .env("GARENNE_ALERT__WEBHOOKS__DEFAULT__URL", hook.url())
        .env("GARENNE_ALERT__ALLOW_NETWORKS", "127.0.0.0/8"))
}

async fn reading(env: &TestEnv, id: &str, second: i64, value: f64, unit: &str) -> Result<()> {
    let time = 1_790_000_000 + second;
    let body = json!({"device": "d1", "metric": "temperature", "value": value, "unit": unit, "time": time});
    let body = body.to_string();
    env.client().publish("garenne.tasks", "reading.process", with_id(id), body.as_bytes()).await
}

/// State, timestamp and value of each alert.
fn alert_summaries(alerts: &[Value]) -> Vec<(String, String, f64)> {
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

/// The alarm is stored, but its alert cannot be published. The reading stays unacked, and the worker that receives
/// it next publishes the alert.
#[tokio::test]
async fn an_alert_that_could_not_be_published_is_sent_by_the_next_worker() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "above = 30")?;
    let plan = watching(&env, "first", &database, &hook)?.option("--shutdown-timeout", "1s");
    let first = plan.lane("fast:prefetch=10,concurrency=2..2").start().await?;
    let options = QueueDeleteOptions::default();
    env.client().channel().queue_delete("garenne.tasks.slow".into(), options).await?;
    reading(&env, "hot", 1, 31.0, "Cel").await?;
    first.until_logged("not confirmed").await?;
    let receipt = first.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.requeued), (1, 0, 1), "{receipt:?}");

    // A worker may not declare queues; the operator declares the missing one again.
    assert_eq!(env.garenne(&["topology", "apply"]).await?.code, Some(0));
    let second = watching(&env, "second", &database, &hook)?.start().await?;
    let alerts = alert_summaries(&hook.until_alerts(1).await?);
    assert_eq!(alerts, [("raised".to_owned(), "2026-09-21T14:13:21Z".to_owned(), 31.0)]);
    let receipt = second.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (2, 0), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn a_silent_device_raises_an_alert_that_its_next_reading_clears() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "silent_for = \"1s\"")?;
    let worker = watching(&env, "listening", &database, &hook)?.start().await?;
    reading(&env, "last", 1, 20.0, "Cel").await?;
    let raised = hook.until_alerts(1).await?;
    assert_eq!(alert_summaries(&raised)[0].0, "raised");
    reading(&env, "again", 2, 20.0, "Cel").await?;
    let all = alert_summaries(&hook.until_alerts(2).await?);
    assert_eq!(all[1].0, "cleared");
    // The silence is measured again from the second reading.
    let all = alert_summaries(&hook.until_alerts(3).await?);
    assert_eq!(all[2].0, "raised");
    assert_eq!(worker.stop().await?.receipt.dead, 0);
    Ok(())
}
