//! Units of readings: every door reads the same ones, and a series has one, however its senders write it.

use anyhow::{Context, Result};
use garenne_tests::harness::{
    dashboard::Dashboard,
    gateway::GatewayPlan,
    postgres::{Database, Postgres},
    test_env::TestEnv,
};
use serde_json::{Value, json};

use super::database::{reading, storing};

/// Rows of an earlier version have another spelling, in readings, series and rollups. Readers get one unit.
async fn check_readers(env: &TestEnv, database: &Database) -> Result<()> {
    let client = database.connect().await?;
    // An hour and a day that are kept, and an hour that is computed of readings.
    client
        .batch_execute(
            "UPDATE garenne_readings SET unit = '°C' WHERE device = 'd1' AND time < '2026-01-01T00:00:10Z';
             UPDATE garenne_series SET last_unit = 'degC' WHERE device = 'd1';
             INSERT INTO garenne_rollups_hour (device, metric, time, unit, count, mean, min, max, flagged, after_prunes)
             VALUES ('d1', 'temperature', '2025-12-31T22:00Z', '°C', 1, 10, 10, 10, 0, 0),
                    ('d1', 'temperature', '2025-12-31T22:00Z', 'Cel', 3, 20, 18, 21, 2, 0);
             INSERT INTO garenne_rollups_day (device, metric, time, unit, count, mean, min, max, flagged, after_prunes)
             SELECT device, metric, '2025-12-31T00:00Z', unit, count, mean, min, max, flagged, 0
             FROM garenne_rollups_hour WHERE time = '2025-12-31T22:00Z'",
        )
        .await?;
    let dashboard = Dashboard::with_database(env, &database.url()).await?;
    let series =
        "/v1/readings?device=d1&metric=temperature&from=2025-12-31T22:00:00Z&to=2026-01-01T01:00:00Z";
    let readings = dashboard.json(series).await?;
    let units = readings["readings"].as_array().context("readings")?.iter().map(|reading| &reading["unit"]);
    assert_eq!(units.collect::<Vec<_>>(), ["Cel"; 8]);
    let shown = |bucket: &Value| {
        [&bucket["unit"], &bucket["count"], &bucket["min"], &bucket["mean"]].map(Value::to_string).join(" ")
    };
    for (step, expected) in [
        ("1m", &["\"Cel\" 8 21.0 21.5"][..]),
        ("1h", &["\"Cel\" 4 10.0 17.5", "\"Cel\" 8 21.0 21.5"]),
        ("1y", &["\"Cel\" 4 10.0 17.5", "\"Cel\" 8 21.0 21.5"]),
    ] {
        let answer = dashboard.json(&format!("{series}&step={step}")).await?;
        let buckets: Vec<_> = answer["buckets"].as_array().context("buckets")?.iter().map(shown).collect();
        assert_eq!(buckets, expected, "{step}");
    }
    let devices = dashboard.json("/v1/devices?device=d1").await?;
    assert_eq!(devices["devices"][0]["metrics"][0]["unit"], "Cel", "{devices}");
    for command in ["latest", "list"] {
        let arguments = ["readings", command, "--device", "d1", "--json", "--postgres-url", &database.url()];
        let since = if command == "list" { &["--from", "2025-12-31T22:00:00Z"][..] } else { &[] };
        let lines = env.garenne(&[&arguments, since].concat()).await?.stdout;
        let units: Vec<_> = lines
            .iter()
            .map(|line| Ok(serde_json::from_str::<Value>(line)?["unit"].to_string()))
            .collect::<Result<_>>()?;
        assert!(!units.is_empty() && units.iter().all(|unit| unit == "\"Cel\""), "{command}: {lines:?}");
    }
    client.batch_execute("UPDATE garenne_readings SET unit = 'Cel' WHERE device = 'd1'").await?;
    Ok(())
}

#[tokio::test]
async fn a_unit_in_several_spellings_is_one() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let worker = storing(&env, "storing", &database.url())?.start().await?;
    let units = ["°C", "degC", "℃", "Cel"];
    let one = |device: &str, metric: &str, second: usize, unit: &str| {
        let time = format!("2026-01-01T00:00:{second:02}Z");
        json!({"device": device, "metric": metric, "value": 21, "unit": unit, "time": time})
    };
    let mut body: Vec<_> =
        (0..).zip(units).map(|(second, unit)| one("d1", "temperature", second, unit)).collect();
    body.extend(["L/min", "l/min"].iter().map(|unit| one(unit, "flow", 0, unit)));
    body.extend(["MB", "MiB", "GiB", "KiB"].iter().map(|unit| one(unit, "memory", 0, unit)));
    let count = body.len();
    let accepted = gateway.post("/v1/readings", "application/json", json!(body).to_string()).await?;
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    // 2026-01-01T00:00:10Z to 13.
    let lines = (10..).zip(units).map(|(second, unit)| {
        format!("temperature,device=d1,unit={unit} value=22 17672256{second:02}000000000\n")
    });
    let written = gateway.post("/api/v2/write", "text/plain", lines.collect::<String>()).await?;
    assert_eq!(written.status, 204, "{}", written.body);
    database.until_count("garenne_readings", i64::try_from(count + units.len())?).await?;
    let stored = "SELECT string_agg(concat_ws(' ', device, metric, unit, count), ', ' ORDER BY device COLLATE \"C\", unit)
                  FROM (SELECT device, metric, unit, count(*) FROM garenne_readings GROUP BY 1, 2, 3) AS r";
    let expected = "GiB memory GiB 1, KiB memory KiB 1, L/min flow l/min 1, MB memory MB 1, MiB memory MiB 1, \
                    d1 temperature Cel 8, l/min flow l/min 1";
    assert_eq!(database.text(stored).await?, expected);

    check_readers(&env, &database).await?;

    // A row of an earlier version has the spelling. The same reading again is none that contradicts it.
    let client = database.connect().await?;
    client.batch_execute("UPDATE garenne_readings SET raw_unit = '°C' WHERE device = 'd1'").await?;
    reading(&env, "again", "2026-01-01T00:00:00Z", 21.0).await?;
    reading(&env, "other", "2026-01-01T00:00:01Z", 23.0).await?;
    assert_eq!(env.take_all("garenne.dead", 1).await?[0].id(), "other");
    assert_eq!(worker.stop().await?.receipt.dead, 1);
    Ok(())
}
