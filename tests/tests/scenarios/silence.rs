//! A device that stops sending raises one alert and nothing else does: not an outage, not a wrong clock, not a repetition.
//! Alerts are published once, also if the worker that stored them is gone.

use std::time::Duration;

use anyhow::{Context, Result};
use garenne_tests::harness::{
    postgres::{Database, Postgres},
    process::Signal,
    test_env::TestEnv,
    wait::{Seen, eventually},
    webhook::Webhook,
};
use lapin::options::QueueDeleteOptions;
use serde_json::{Value, json};
use tokio::time::interval;
use tokio_postgres::Client;

use super::alarms::{alert_summaries, publish_reading, reading, rules, watching};

/// The states of alerts, in order.
fn states(alerts: &[Value]) -> Vec<&str> {
    alerts.iter().filter_map(|alert| alert["data"]["state"].as_str()).collect()
}

/// Since when silence has been checked without a gap, in seconds.
async fn checked_for(client: &Client) -> Result<f64> {
    let query = "SELECT extract(epoch FROM checked_at - since)::float8 FROM garenne_monitor
                 WHERE name LIKE 'silence %'";
    Ok(client.query_opt(query, &[]).await?.context("no check yet")?.get(0))
}

/// Publishes a reading every 100 ms until silence has been checked without a gap for this time. Returns the number of
/// the next reading.
async fn send_until_checked_for(env: &TestEnv, database: &Database, from: i64, seconds: f64) -> Result<i64> {
    let (client, mut pace, mut next) =
        (database.connect().await?, interval(Duration::from_millis(100)), from);
    eventually(format!("checks without a gap for {seconds} s"), async || {
        pace.tick().await;
        reading(env, &format!("r{next}"), next, 20.0, "Cel").await?;
        next += 1;
        let checked = checked_for(&client).await?;
        Ok(Seen::when(checked >= seconds, checked))
    })
    .await?;
    Ok(next)
}

/// Waits until silence was checked several times more.
async fn until_checked_again(database: &Database) -> Result<()> {
    let client = database.connect().await?;
    let begin = checked_for(&client).await?;
    eventually("further checks", async || {
        let checked = checked_for(&client).await?;
        Ok(Seen::when(checked >= begin + 3.0, checked))
    })
    .await
}

#[tokio::test]
async fn a_silent_device_raises_an_alert_that_its_next_reading_clears() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "silent_for = \"1s\"")?;
    let worker = watching(&env, "listening", &database, &hook)?.start().await?;
    reading(&env, "last", 1, 20.0, "Cel").await?;
    hook.until_alerts(1).await?;
    reading(&env, "again", 2, 20.0, "Cel").await?;
    // The silence is measured again from the second reading.
    hook.until_alerts(3).await?;
    // Flags and times do not matter: below absolute zero, and older than all others.
    reading(&env, "impossible", 3, -300.0, "Cel").await?;
    hook.until_alerts(5).await?;
    reading(&env, "late", 0, 20.0, "Cel").await?;
    let alerts = hook.until_alerts(7).await?;
    assert_eq!(
        states(&alerts)[..7],
        ["raised", "cleared", "raised", "cleared", "raised", "cleared", "raised"]
    );
    assert_eq!(alerts[0]["data"]["says"], "silent for 1s");
    assert_eq!(database.count("garenne_alarms WHERE ended > since").await?, 3);
    assert_eq!(database.count("garenne_alarms WHERE ended IS NULL").await?, 1);
    assert_eq!(worker.stop().await?.receipt.dead, 0);
    Ok(())
}

#[tokio::test]
async fn repeated_first_readings_raise_one_silence() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "silent_for = \"1s\"")?;
    let first = watching(&env, "first", &database, &hook)?.start().await?;
    let second = watching(&env, "second", &database, &hook)?.start().await?;
    for n in 0..6 {
        reading(&env, &format!("r{n}"), 1, 20.0, "Cel").await?;
    }
    hook.until_alerts(1).await?;
    until_checked_again(&database).await?;
    // A repeated reading is none: the device is still silent.
    reading(&env, "repeated", 1, 20.0, "Cel").await?;
    env.until_settled(7).await?;
    until_checked_again(&database).await?;
    assert_eq!(states(&hook.alerts()), ["raised"]);
    assert_eq!(database.count("garenne_alarms").await?, 1);
    for worker in [first, second] {
        assert_eq!(worker.stop().await?.receipt.dead, 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_reading_of_the_far_future_neither_raises_nor_hides_a_silence() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "silent_for = \"8s\"")?;
    let plan = watching(&env, "listening", &database, &hook)?.env("GARENNE_MAX_CLOCK_SKEW", "0s");
    let worker = plan.start().await?;
    publish_reading(&env, "future", json!({"time": "2099-01-01T00:00:00Z"})).await?;
    database.until_count("garenne_readings", 1).await?;
    send_until_checked_for(&env, &database, 1, 15.0).await?;
    assert_eq!(database.count("garenne_alarms").await?, 0, "a false silence: {:?}", hook.alerts());
    // The traffic has ended.
    hook.until_alerts(1).await?;
    reading(&env, "again", 100_000, 20.0, "Cel").await?;
    let alerts = hook.until_alerts(3).await?;
    assert_eq!(states(&alerts), ["raised", "cleared", "raised"]);
    assert_eq!(worker.stop().await?.receipt.dead, 0);
    Ok(())
}

/// Readings arrive all the time, the database is away for longer than `silent_for`, and what has arrived is stored after
/// the outage. No device was silent. A device that stops later is.
#[tokio::test]
async fn an_outage_of_the_database_raises_no_silence_and_ends_no_watch() -> Result<()> {
    let env = TestEnv::new().await?;
    let server = Postgres::start().await?;
    let database = server.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "silent_for = \"8s\"")?;
    let first = watching(&env, "first", &database, &hook)?.start().await?;
    let second = watching(&env, "second", &database, &hook)?.start().await?;
    let mut next = send_until_checked_for(&env, &database, 1, 11.0).await?;
    server.kill().await?;
    let mut pace = interval(Duration::from_millis(100));
    // Ten seconds: longer than `silent_for`.
    for _ in 0..100 {
        pace.tick().await;
        reading(&env, &format!("r{next}"), next, 20.0, "Cel").await?;
        next += 1;
    }
    for worker in [&first, &second] {
        worker.until_not_ready_for("sink postgres").await?;
        worker.until_metric("garenne_sink_up", &["sink=\"postgres\""], 0.0).await?;
    }
    server.restart().await?;
    // Longer than the shortest time after which silences are raised: with the gap it begins anew.
    let last = send_until_checked_for(&env, &database, next, 13.0).await?;
    assert_eq!(database.count("garenne_alarms").await?, 0, "a false silence: {:?}", hook.alerts());
    database.until_count("garenne_readings", last - 1).await?;
    hook.until_alerts(1).await?;
    until_checked_again(&database).await?;
    assert_eq!(states(&hook.alerts()), ["raised"]);
    reading(&env, "again", last, 20.0, "Cel").await?;
    assert_eq!(states(&hook.until_alerts(2).await?)[..2], ["raised", "cleared"]);
    for worker in [first, second] {
        assert_eq!(worker.stop().await?.receipt.dead, 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_repeated_reading_and_a_replayed_file_tell_nothing_again() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "above = 30")?;
    let worker = watching(&env, "storing", &database, &hook)?.start().await?;
    for n in 0..4 {
        reading(&env, &format!("hot{n}"), 1, 31.0, "Cel").await?;
    }
    hook.until_alerts(1).await?;
    env.until_settled(4).await?;
    database.until_count("garenne_notices WHERE published_at IS NULL", 0).await?;
    assert_eq!((states(&hook.alerts()), hook.requests()), (vec!["raised"], 1));

    let values = [20.0, 31.0, 32.0, 20.0, 35.0, 20.0];
    for round in 0..2 {
        for (second, value) in (0..).zip(values) {
            reading(&env, &format!("{round}-{second}"), second, value, "Cel").await?;
            // In order, so that the number of alerts is known.
            let stored = 4 + 6 * round + second + 1;
            database.until_count("garenne_results WHERE kind = 'reading.process'", stored).await?;
        }
    }
    hook.until_alerts(4).await?;
    database.until_count("garenne_notices WHERE published_at IS NULL", 0).await?;
    env.until_lane("slow", 0, 0).await?;
    let alerts = hook.alerts();
    let mut states = states(&alerts);
    states.sort_unstable();
    assert_eq!(states, ["cleared", "cleared", "raised", "raised"]);
    assert_eq!(database.count("garenne_notices").await?, 4);
    assert_eq!(worker.stop().await?.receipt.dead, 0);
    Ok(())
}

/// The alarm is stored and its reading acked, but the alert cannot be published. The worker is killed. Another one
/// publishes the alert.
#[tokio::test]
async fn the_alert_of_a_killed_worker_is_published_by_another_one() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "above = 30")?;
    let plan = watching(&env, "first", &database, &hook)?;
    let first = plan.lane("fast:prefetch=10,concurrency=2..2").start().await?;
    let options = QueueDeleteOptions::default();
    env.client().channel().queue_delete("garenne.tasks.slow".into(), options).await?;
    reading(&env, "hot", 1, 31.0, "Cel").await?;
    first.until_logged("alerts not published").await?;
    first.until_not_ready_for("alert relay").await?;
    env.until_lane("fast", 0, 0).await?;
    first.kill().await?;
    assert_eq!(database.count("garenne_notices WHERE published_at IS NULL").await?, 1);

    // A worker may not declare queues; the operator declares the missing one again.
    assert_eq!(env.garenne(&["topology", "apply"]).await?.code, Some(0));
    let second = watching(&env, "second", &database, &hook)?.start().await?;
    let alerts = alert_summaries(&hook.until_alerts(1).await?);
    assert_eq!(alerts, [("raised".to_owned(), "2026-09-21T14:13:21Z".to_owned(), 31.0)]);
    database.until_count("garenne_notices WHERE published_at IS NULL", 0).await?;
    let receipt = second.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (1, 0), "{receipt:?}");
    assert_eq!(hook.alerts().len(), 1);

    // A notice is deleted a week after it was published.
    let week_later = "UPDATE garenne_notices SET published_at = now() - interval '7 days 1 minute'";
    database.connect().await?.execute(week_later, &[]).await?;
    let third = watching(&env, "third", &database, &hook)?.start().await?;
    database.until_count("garenne_notices", 0).await?;
    assert_eq!(third.stop().await?.receipt.acked, 0);
    Ok(())
}

/// A worker that stops publishes the alerts of the readings that it has stored at last.
#[tokio::test]
async fn a_stop_publishes_the_alerts_of_the_last_readings() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "above = 30")?;
    let worker = watching(&env, "stopping", &database, &hook)?.start().await?;
    // Another session's lock delays the notices until the worker stops.
    let locking = database.connect().await?;
    locking.batch_execute("BEGIN; LOCK TABLE garenne_notices IN SHARE MODE").await?;
    reading(&env, "hot", 1, 31.0, "Cel").await?;
    eventually("the write waits", async || {
        let waiting = database.count("pg_locks WHERE NOT granted AND locktype = 'relation'").await?;
        Ok(Seen::when(waiting > 0, waiting))
    })
    .await?;
    worker.signal(Signal::TERM)?;
    worker.until_logged("\"message\":\"stopping\"").await?;
    locking.batch_execute("COMMIT").await?;
    let receipt = worker.stopped().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (1, 0), "{receipt:?}");
    assert_eq!(database.count("garenne_notices WHERE published_at IS NOT NULL").await?, 1);
    env.until_lane("slow", 1, 0).await
}
