//! Readings beyond a rule become alerts: once, whichever workers got which readings in what order, and
//! whatever breaks between the reading and the one who is told.

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

/// State, time of day and value of each alert.
fn told(alerts: &[Value]) -> Vec<(String, String, f64)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |alert: &Value| {
        let data = &alert["data"];
        (text(&data["state"]), text(&alert["timestamp"]), data["value"].as_f64().unwrap_or_default())
    };
    alerts.iter().map(one).collect()
}

#[tokio::test]
async fn a_crossing_is_told_once_by_a_whole_fleet_in_any_order() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    // Broken, then busy, then well.
    let hook = Webhook::start([(500, ""), (500, ""), (500, ""), (429, "retry-after: 0\r\n")]).await?;
    rules(&env, "above = 30\nclear = 25")?;
    let first = watching(&env, "first", &database, &hook)?.start().await?;
    let second = watching(&env, "second", &database, &hook)?.start().await?;
    // 100 °F is 37.8 °C: units convert. Each reading comes three times, and late ones last.
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
    let mut told = told(&hook.until_alerts(2).await?);
    told.sort_by(|a, b| a.0.cmp(&b.0));
    let states: Vec<_> = told.iter().map(|(state, ..)| state.as_str()).collect();
    assert_eq!(states, ["cleared", "raised"], "{told:?}");
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

/// The alarm is stored and nobody can be told: the reading stays unacked, and whoever gets it next tells.
#[tokio::test]
async fn an_alarm_is_told_though_its_worker_could_not() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "above = 30")?;
    let plan = watching(&env, "mute", &database, &hook)?.option("--shutdown-timeout", "1s");
    let mute = plan.lane("fast:prefetch=10,concurrency=2..2").start().await?;
    let gone = QueueDeleteOptions::default();
    env.client().channel().queue_delete("garenne.tasks.slow".into(), gone).await?;
    reading(&env, "hot", 1, 31.0, "Cel").await?;
    mute.until_logged("not confirmed").await?;
    let receipt = mute.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.requeued), (1, 0, 1), "{receipt:?}");

    // A worker may not make queues; who may puts the missing one back.
    assert_eq!(env.garenne(&["topology", "apply"]).await?.code, Some(0));
    let heir = watching(&env, "heir", &database, &hook)?.start().await?;
    let told = told(&hook.until_alerts(1).await?);
    assert_eq!(told, [("raised".to_owned(), "2026-09-21T14:13:21Z".to_owned(), 31.0)]);
    let receipt = heir.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (2, 0), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn silence_is_told_and_its_end() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "silent_for = \"1s\"")?;
    let worker = watching(&env, "listening", &database, &hook)?.start().await?;
    reading(&env, "last", 1, 20.0, "Cel").await?;
    let raised = hook.until_alerts(1).await?;
    assert_eq!(told(&raised)[0].0, "raised");
    reading(&env, "again", 2, 20.0, "Cel").await?;
    let all = told(&hook.until_alerts(2).await?);
    assert_eq!(all[1].0, "cleared");
    // It is watched anew: the second reading was the last for now.
    let all = told(&hook.until_alerts(3).await?);
    assert_eq!(all[2].0, "raised");
    assert_eq!(worker.stop().await?.receipt.dead, 0);
    Ok(())
}
