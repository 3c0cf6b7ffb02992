//! An edited calibration: what was sent identifies a reading, and stored readings are recomputed from it.

use std::path::PathBuf;

use anyhow::Result;
use garenne_tests::harness::{
    client::with_id,
    postgres::{Database, Postgres},
    process::{Process, Program, Signal},
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::{Value, json};
use tokio_postgres::Client;

/// As long as the sensors' first calibration was used.
const FIRST: &str = r#"
    [[calibration]]
    metric = "temperature"
    version = "first"
    unit = "Cel"
    valid = [15, 40]
"#;

/// The sensors were compared with a reference, and drifted later.
const SECOND: &str = r#"
    [[calibration]]
    metric = "temperature"
    until = 2026-09-21T14:00:00Z
    version = "second"
    unit = "Cel"
    gain = 1.02
    offset = -0.31
    valid = [-20, 30]

    [[calibration]]
    metric = "temperature"
    from = 2026-09-21T14:00:00Z
    version = "second, drifted"
    unit = "K"
    offset = 0.5

    [[calibration]]
    metric = "humidity"
    gain = 1.1
"#;

/// 2026-09-21T13:46:40Z
const START: u32 = 1_790_000_000 - 1_600;

fn file(env: &TestEnv, name: &str, rules: &str) -> Result<PathBuf> {
    let path = env.folder().join(name);
    std::fs::write(&path, rules)?;
    Ok(path)
}

async fn publish(env: &TestEnv, id: &str, readings: &Value) -> Result<()> {
    let body = serde_json::to_vec(readings)?;
    env.client().publish("garenne.tasks", "reading.process", with_id(id), &body).await
}

/// Stores tasks with a calibration, on a worker that stops afterwards. `settled` tasks were stored before.
async fn store(
    env: &TestEnv,
    name: &str,
    database: &Database,
    rules: &str,
    tasks: &[Value],
    settled: usize,
) -> Result<()> {
    let calibration = file(env, &format!("{name}.toml"), rules)?;
    let plan = env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url());
    let worker = plan.option("--calibration", calibration.display().to_string()).start().await?;
    for (index, task) in tasks.iter().enumerate() {
        publish(env, &format!("{name}-{index}"), task).await?;
    }
    env.until_settled(settled + tasks.len()).await?;
    worker.stop().await?;
    Ok(())
}

/// Everything that is stored of readings and series, without who stored it and when.
async fn stored(database: &Database) -> Result<Vec<String>> {
    let rows = database
        .connect()
        .await?
        .query(
            "SELECT concat_ws('|', device, metric, time, value, unit, raw, raw_unit, quality, calibration)
             FROM garenne_readings
             UNION ALL SELECT concat_ws('|', device, metric, last_time, last_value, last_unit, last_quality)
             FROM garenne_series ORDER BY 1",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The number of measured readings by the version of their calibration.
async fn versions(database: &Database) -> Result<Value> {
    let versions = "SELECT coalesce(json_object_agg(calibration, count), '{}') FROM (
        SELECT calibration, count(*) FROM garenne_readings WHERE raw IS NOT NULL GROUP BY 1) AS versions";
    Ok(database.connect().await?.query_one(versions, &[]).await?.get(0))
}

/// Three devices with 2,500 pairs each. Some temperatures are flagged by the first calibration, some by the second,
/// and some humidities are above 100 % with the second, so that derived values come and go.
fn tasks() -> Vec<Value> {
    let readings = |device: usize, seconds: std::ops::Range<u32>| {
        let pair = |second: u32| {
            let (device, time) = (format!("greenhouse-{device}"), START + second);
            let temperature = 50.0 + f64::from(second % 50);
            let humidity = 40.0 + f64::from(second % 60);
            [
                json!({"device": device, "metric": "temperature", "value": temperature, "unit": "degF", "time": time}),
                json!({"device": device, "metric": "humidity", "value": humidity, "unit": "%RH", "time": time}),
            ]
        };
        Value::from(seconds.flat_map(pair).collect::<Vec<_>>())
    };
    (0..3).flat_map(|device| [readings(device, 0..1_250), readings(device, 1_250..2_500)]).collect()
}

#[tokio::test]
async fn a_reading_that_is_sent_again_after_an_edit_is_a_repetition() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let tasks = &tasks()[..1];
    store(&env, "first", &database, FIRST, tasks, 0).await?;
    let before = stored(&database).await?;
    assert_eq!(versions(&database).await?, json!({"first": 1_250, "none": 1_250}));

    store(&env, "second", &database, SECOND, tasks, 1).await?;
    assert!(stored(&database).await? == before, "a replay changed stored readings");
    env.is_empty("garenne.dead").await?;

    // Another raw value is a conflict, and so is the same number in another unit.
    let mut other = tasks[0][0].clone();
    other["value"] = json!(51.0);
    let mut kelvin = tasks[0][0].clone();
    kelvin["unit"] = json!("K");
    store(&env, "third", &database, "", &[json!([other]), json!([kelvin])], 2).await?;
    let dead = env.take_all("garenne.dead", 2).await?;
    let mut errors: Vec<_> = dead.iter().map(|dead| dead.text("garenne-error")).collect();
    errors.sort_unstable();
    let conflict = "conflicting value for greenhouse-0 temperature: stored";
    assert_eq!(errors, [format!("{conflict} 50 degF, received 50 K"), format!("{conflict} 50, received 51")]);
    assert!(stored(&database).await? == before, "a conflict changed stored readings");
    Ok(())
}

/// With `replace`, too: the calibrated value is another one, and what was sent is the same. A corrected reading takes its
/// derived values with it.
#[tokio::test]
async fn an_edit_replaces_nothing() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let replacing = async |name: &str, rules: &str, task: &Value, settled: usize| {
        let calibration = file(&env, &format!("{name}.toml"), rules)?;
        let plan = env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url());
        let plan = plan.env("GARENNE_ON_CONFLICT", "replace");
        let worker = plan.option("--calibration", calibration.display().to_string()).start().await?;
        publish(&env, name, task).await?;
        env.until_settled(settled).await?;
        worker.stop().await?;
        stored(&database).await
    };
    let pair = |temperature: f64| {
        json!([
            {"device": "a", "metric": "temperature", "value": temperature, "unit": "degF", "time": START},
            {"device": "a", "metric": "humidity", "value": 50.0, "unit": "%RH", "time": START},
        ])
    };
    let first = replacing("first", FIRST, &pair(68.0), 1).await?;
    assert_eq!(replacing("edited", SECOND, &pair(68.0), 2).await?, first);
    let corrected = replacing("corrected", FIRST, &pair(86.0), 3).await?;
    let dew_points: Vec<_> = corrected.iter().filter(|row| row.starts_with("a|dew_point")).collect();
    assert!(dew_points.len() == 2 && dew_points.iter().all(|row| row.contains("|18.4")), "{corrected:?}");
    Ok(())
}

/// The result is that of storing with the new file, also if the first run is interrupted in the middle.
#[tokio::test]
async fn recalibrated_readings_are_those_that_storing_would_have_given() -> Result<()> {
    let env = TestEnv::new().await?;
    let server = Postgres::shared().await?;
    let (database, reference) = (server.database().await?, server.database().await?);
    store(&env, "first", &database, FIRST, &tasks(), 0).await?;
    store(&env, "reference", &reference, SECOND, &tasks(), 6).await?;
    let before = stored(&database).await?;
    let expected = stored(&reference).await?;
    assert!(before != expected);

    let calibration = file(&env, "second.toml", SECOND)?;
    let (url, calibration) = (database.url(), calibration.display().to_string());
    let arguments =
        ["readings", "recalibrate", "--postgres-url", &url, "--calibration", &calibration, "--json"];
    let dry = env.garenne(&[&arguments[..], &["--dry-run"]].concat()).await?;
    let dry: Value = serde_json::from_str(&dry.stdout.join("\n"))?;
    assert!(stored(&database).await? == before, "a dry run changed stored readings");

    // Another session's locks hold the command in the second pages of two devices.
    let locking = lock_last_readings(&database, &["greenhouse-0", "greenhouse-1"]).await?;
    let interrupted = start(&env, &[&arguments[..], &["--jobs", "2"]].concat()).await?;
    until_waiting(&database, 2).await?;
    interrupted.signal(Signal::INT)?;
    let noted = "interrupted: finishing the present batches";
    interrupted.stderr().until(noted, |lines| lines.iter().any(|line| line == noted).then_some(())).await?;
    locking.batch_execute("ROLLBACK").await?;
    let interrupted = interrupted.ended().await?;
    assert_eq!(interrupted.code, Some(1), "{:?}", interrupted.stderr);
    let counts: Value = serde_json::from_str(&interrupted.stdout.join("\n"))?;
    let left = ["interrupted", "devices", "devices_left", "devices_failed"].map(|name| &counts[name]);
    assert_eq!(left, [&json!(true), &json!(3), &json!(1), &json!(0)]);
    // The batches that waited for the locks were the last ones of their devices.
    let done = versions(&database).await?;
    assert_eq!(done["first"], json!(2_500), "{done}");

    let again = env.garenne(&arguments).await?;
    let again: Value = serde_json::from_str(&again.stdout.join("\n"))?;
    assert_eq!(again["interrupted"], json!(false));
    let changed = |counts: &Value| counts["changed"].as_u64().unwrap_or_default();
    assert_eq!(changed(&counts) + changed(&again), changed(&dry));
    assert_eq!(changed(&dry), 15_000);
    let derived = |counts: &Value, name: &str| counts[name].as_u64().unwrap_or_default();
    assert!(derived(&dry, "derived_written") > 0 && derived(&dry, "derived_removed") > 0, "{dry}");
    // A dry run counts a value once for each of its inputs that change.
    for name in ["derived_written", "derived_removed"] {
        assert!(derived(&counts, name) + derived(&again, name) <= derived(&dry, name), "{name}");
    }
    let after = stored(&database).await?;
    let differing = after.iter().zip(&expected).find(|(after, expected)| after != expected);
    assert!(after == expected, "{} and {} rows: {differing:?}", after.len(), expected.len());

    let third = env.garenne(&arguments).await?;
    let third: Value = serde_json::from_str(&third.stdout.join("\n"))?;
    assert_eq!(
        (changed(&third), third["derived_written"].as_u64(), third["derived_removed"].as_u64()),
        (0, Some(0), Some(0))
    );
    Ok(())
}

/// Starts `garenne` with these arguments.
async fn start(env: &TestEnv, arguments: &[&str]) -> Result<Process> {
    Program::garenne(env.operator_url(), arguments).start().await
}

/// Locks the last temperature of each device until the connection ends its transaction.
async fn lock_last_readings(database: &Database, devices: &[&str]) -> Result<Client> {
    let locking = database.connect().await?;
    locking.batch_execute("BEGIN").await?;
    for device in devices {
        let lock = "SELECT FROM garenne_readings WHERE device = $1 AND metric = 'temperature'
                    ORDER BY time DESC LIMIT 1 FOR UPDATE";
        locking.execute(lock, &[device]).await?;
    }
    Ok(locking)
}

/// Waits until this many sessions wait for locks.
async fn until_waiting(database: &Database, count: i64) -> Result<()> {
    let monitoring = database.connect().await?;
    eventually(format!("{count} sessions wait for locks"), async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let waiting: i64 = monitoring.query_one(waiting, &[]).await?.get(0);
        Ok(Seen::when(waiting == count, waiting))
    })
    .await
}

/// While one device waits for another session's lock, the other devices are computed.
#[tokio::test]
async fn a_device_that_waits_does_not_delay_the_others() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    store(&env, "first", &database, FIRST, &tasks(), 0).await?;
    let calibration = file(&env, "second.toml", SECOND)?.display().to_string();
    let url = database.url();
    let arguments = ["readings", "recalibrate", "--postgres-url", &url, "--calibration", &calibration];
    let locking = lock_last_readings(&database, &["greenhouse-0"]).await?;
    let running = start(&env, &arguments).await?;
    // The last page of the first device has 500 temperatures.
    eventually("the other devices are computed", async || {
        let versions = versions(&database).await?;
        Ok(Seen::when(versions["first"] == json!(500), versions))
    })
    .await?;
    locking.batch_execute("ROLLBACK").await?;
    let ended = running.ended().await?;
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    assert_eq!(versions(&database).await?["first"], json!(null));
    Ok(())
}

/// A device whose readings the database refuses is named, and the others are computed. Afterwards the command continues.
#[tokio::test]
async fn a_device_that_fails_does_not_stop_the_others() -> Result<()> {
    let env = TestEnv::new().await?;
    let server = Postgres::shared().await?;
    let (database, reference) = (server.database().await?, server.database().await?);
    store(&env, "first", &database, FIRST, &tasks(), 0).await?;
    store(&env, "reference", &reference, SECOND, &tasks(), 6).await?;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                      $$ BEGIN RAISE EXCEPTION 'no change of %', new.device; END $$;
                  CREATE TRIGGER refuse BEFORE UPDATE ON garenne_readings FOR EACH ROW
                      WHEN (new.device = 'greenhouse-0') EXECUTE FUNCTION refuse()";
    database.connect().await?.batch_execute(refuse).await?;
    let calibration = file(&env, "second.toml", SECOND)?.display().to_string();
    let url = database.url();
    let arguments =
        ["readings", "recalibrate", "--postgres-url", &url, "--calibration", &calibration, "--jobs", "1"];
    let failed = env.try_garenne(&[&arguments[..], &["--json"]].concat()).await?;
    assert_eq!(failed.code, Some(1));
    let error = "no change of greenhouse-0; raised in PL/pgSQL function refuse() line 1 at RAISE";
    let line = failed.stderr.last().map_or("", String::as_str);
    let problem =
        format!(": 1 of 3 devices failed, first greenhouse-0: {error}; run the command again to continue");
    assert!(line.starts_with("garenne: Postgres at ") && line.ends_with(&problem), "{line}");
    let counts: Value = serde_json::from_str(&failed.stdout.join("\n"))?;
    assert_eq!(counts["failures"], json!([{"device": "greenhouse-0", "error": error}]));
    assert_eq!((&counts["interrupted"], &counts["devices_left"]), (&json!(false), &json!(0)));
    assert_eq!(versions(&database).await?["first"], json!(2_500));

    database.connect().await?.batch_execute("DROP TRIGGER refuse ON garenne_readings").await?;
    env.garenne(&arguments).await?;
    assert!(stored(&database).await? == stored(&reference).await?);
    Ok(())
}

/// Only what is selected changes, and derived values follow.
#[tokio::test]
async fn devices_metrics_and_times_select_what_is_recalibrated() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    store(&env, "first", &database, FIRST, &tasks(), 0).await?;
    let calibration = file(&env, "second.toml", SECOND)?.display().to_string();
    let url = database.url();
    let arguments = ["readings", "recalibrate", "--postgres-url", &url, "--calibration", &calibration];
    let selection = [
        "--device",
        "greenhouse-2*",
        "--metric",
        "temperature",
        "--from",
        "2026-09-21T13:50:00Z",
        "--to",
        "2026-09-21T14:00:00Z",
    ];
    let some = env.garenne(&[&arguments[..], &selection].concat()).await?;
    let line = "600 readings: 600 changed (600 with another value, unit or flags), 0 unchanged, 0 skipped";
    assert!(some.stdout.iter().any(|found| found == line), "{:?}", some.stdout);
    let changed = "SELECT count(*), min(time) = '2026-09-21T13:50:00Z', max(time) = '2026-09-21T13:59:59Z'
                   FROM garenne_readings
                   WHERE calibration = 'second' AND device = 'greenhouse-2' AND metric = 'temperature'";
    let row = database.connect().await?.query_one(changed, &[]).await?;
    assert_eq!((row.get::<_, i64>(0), row.get(1), row.get(2)), (600, true, true));
    let versions = versions(&database).await?;
    assert_eq!(versions, json!({"first": 6_900, "none": 7_500, "second": 600}));

    let wrong = env
        .try_garenne(
            &[&arguments[..], &["--from", "2026-09-21T13:40:00Z", "--to", "2026-09-21T13:40:00Z"]].concat(),
        )
        .await?;
    assert_eq!(
        (wrong.code, &wrong.stderr[..]),
        (
            Some(2),
            &["garenne: --to: 2026-09-21T13:40:00Z is not after --from (2026-09-21T13:40:00Z)".to_owned()][..]
        )
    );
    Ok(())
}
