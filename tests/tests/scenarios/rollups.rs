//! Rows that are kept of readings: results without them, and hours and days that outlive them.

use anyhow::{Context, Result};
use garenne_tests::harness::{
    client::with_id,
    dashboard::Dashboard,
    postgres::{Database, Postgres},
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::WorkerPlan,
};
use serde_json::json;

fn storing(env: &TestEnv, name: &str, database: &Database) -> Result<WorkerPlan> {
    Ok(env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url()))
}

/// A database with the tables of the current version.
async fn migrated(env: &TestEnv) -> Result<Database> {
    let database = Postgres::shared().await?.database().await?;
    env.garenne(&["database", "migrate", "--postgres-url", &database.url()]).await?;
    Ok(database)
}

async fn reading(env: &TestEnv, id: &str, time: &str, value: f64) -> Result<()> {
    let body = json!({"device": "d1", "metric": "temperature", "value": value, "unit": "Cel", "time": time});
    env.client().publish("garenne.tasks", "reading.process", with_id(id), body.to_string().as_bytes()).await
}

/// The rollups that differ from what the stored readings give, of hours (or days) in `rollups`, a table or a function.
fn differences(unit: &str, rollups: &str) -> String {
    format!(
        "SELECT count(*) FROM (
             SELECT device, metric, date_bin('1 {unit}', time, '2000-01-01Z') AS time, coalesce(unit, '') AS unit,
                    count(*) FILTER (WHERE usable) AS count, avg(value) FILTER (WHERE usable) AS mean,
                    min(value) FILTER (WHERE usable) AS min, max(value) FILTER (WHERE usable) AS max,
                    count(*) FILTER (WHERE NOT usable) AS flagged
             FROM (SELECT *, NOT quality && '{{out-of-range,impossible,not-calibrated}}' AS usable
                   FROM garenne_readings) AS readings GROUP BY 1, 2, 3, 4) AS wanted
         FULL JOIN {rollups} AS found USING (device, metric, time, unit)
         WHERE (wanted.count, wanted.min, wanted.max, wanted.flagged)
               IS DISTINCT FROM (found.count, found.min, found.max, found.flagged)
         OR abs(wanted.mean - found.mean) > 1e-9 OR wanted.mean IS NULL <> (found.mean IS NULL)"
    )
}

/// The answer to readers before the rollups are computed.
const CURRENT: &str =
    "(SELECT series.device, series.metric, hours.* FROM garenne_series AS series CROSS JOIN LATERAL
    garenne_hourly(series.device, series.metric, '2000-01-01Z', '2030-01-01Z') AS hours)";
const CURRENT_DAYS: &str =
    "(SELECT series.device, series.metric, days.* FROM garenne_series AS series CROSS JOIN LATERAL
    garenne_daily(series.device, series.metric, '2000-01-01Z', '2030-01-01Z') AS days)";

/// Readers get what the readings give, at once.
async fn check_current(database: &Database) -> Result<()> {
    assert_eq!(database.text(&differences("hour", CURRENT)).await?, "0");
    assert_eq!(database.text(&differences("day", CURRENT_DAYS)).await?, "0");
    Ok(())
}

/// The number of series whose rollups are not complete.
const STALE: &str =
    "SELECT count(*) FROM garenne_series WHERE stale && tstzrange(NULL, now() - interval '2 hours')";

/// Waits until every rollup is computed, and checks that it is what the readings give.
async fn until_rolled_up(database: &Database) -> Result<()> {
    eventually("every rollup is computed", async || {
        let stale = database.text(STALE).await?;
        Ok(Seen::when(stale == "0", format!("{stale} stale series")))
    })
    .await?;
    assert_eq!(database.text(&differences("hour", "garenne_rollups_hour")).await?, "0");
    assert_eq!(database.text(&differences("day", "garenne_rollups_day")).await?, "0");
    Ok(())
}

/// A repeated task has no second effect with any setting, and a result does not repeat its readings by default.
#[tokio::test]
async fn results_are_stored_as_configured() -> Result<()> {
    let rows = "SELECT string_agg(task_id || ' ' || output, ', ' ORDER BY task_id)
                FROM (SELECT task_id, left(output::text, 13) AS output FROM garenne_results) AS results";
    for (setting, wanted) in [
        (None, r#"echo {"n": 7}, first {}"#),
        (Some("all"), r#"echo {"n": 7}, first {"derived": ["#),
        (Some("off"), ""),
    ] {
        let env = TestEnv::new().await?;
        let database = Postgres::shared().await?.database().await?;
        let mut plan = storing(&env, "storing", &database)?;
        if let Some(setting) = setting {
            plan = plan.env("GARENNE_POSTGRES_RESULTS", setting);
        }
        let worker = plan.start().await?;
        for count in [1, 2] {
            reading(&env, "first", "2026-09-01T00:00:00Z", 20.5).await?;
            env.client().publish("garenne.tasks", "bench.echo", with_id("echo"), br#"{"n": 7}"#).await?;
            env.until_settled(2 * count).await?;
        }
        let receipt = worker.stop().await?.receipt;
        assert_eq!((receipt.acked, receipt.dead), (4, 0), "{receipt:?}");
        assert_eq!(database.text(rows).await?, wanted, "{setting:?}");
        assert_eq!(database.text("SELECT count(*) FROM garenne_readings").await?, "1");
    }
    Ok(())
}

/// Late, flagged, replaced and recalibrated readings change the rollups that they concern, and no others.
#[tokio::test]
async fn rollups_are_right_in_every_order_of_arrival() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(&env, "storing", &database)?.env("GARENNE_ON_CONFLICT", "replace").start().await?;
    let mut settled = 0;
    let mut store = async |readings: &[(&str, f64)]| {
        for (time, value) in readings {
            settled += 1;
            reading(&env, &format!("r{settled}"), time, *value).await?;
        }
        env.until_settled(settled).await
    };
    store(&[
        ("2026-09-02T10:20:00Z", 20.0),
        ("2026-09-02T08:59:59.999999Z", 18.0),
        ("2026-09-02T09:00:00Z", 19.0),
        ("2026-09-01T23:59:00Z", -280.0),
    ])
    .await?;
    check_current(&database).await?;
    until_rolled_up(&database).await?;
    let computed = "SELECT string_agg(count || '/' || flagged, ' ' ORDER BY time) FROM garenne_rollups_hour";
    assert_eq!(database.text(computed).await?, "0/1 1/0 1/0 1/0");

    // Late ones, a replaced one, and one that changes nothing.
    store(&[
        ("2026-09-02T08:30:00Z", 30.0),
        ("2026-08-30T12:00:00Z", 15.0),
        ("2026-09-02T10:20:00Z", 21.0),
        ("2026-09-02T09:00:00Z", 19.0),
    ])
    .await?;
    check_current(&database).await?;
    until_rolled_up(&database).await?;
    assert_eq!(database.text(computed).await?, "1/0 0/1 2/0 1/0 1/0");

    let rules = "[[calibration]]\nmetric = \"temperature\"\nfrom = 2026-09-02T09:00:00Z\nunit = \"K\"\n";
    let calibration = env.folder().join("calibration.toml");
    std::fs::write(&calibration, rules)?;
    let calibration = calibration.display().to_string();
    let url = database.url();
    env.garenne(&["readings", "recalibrate", "--calibration", &calibration, "--postgres-url", &url]).await?;
    check_current(&database).await?;
    until_rolled_up(&database).await?;
    let units = "SELECT string_agg(DISTINCT unit, ' ' ORDER BY unit) FROM garenne_rollups_day";
    assert_eq!(database.text(units).await?, "Cel K");

    // Many, in no order and each replaced several times, while the rollups are computed.
    let start = time::macros::datetime!(2026-09-03 0:00 UTC);
    let many: Vec<_> = (0..400_u16)
        .map(|n| {
            let time = start + time::Duration::minutes(i64::from(n * 37 % 100) * 47);
            (time.format(&time::format_description::well_known::Rfc3339), f64::from(n % 90))
        })
        .collect();
    let many: Vec<_> = many.iter().flat_map(|(time, value)| Some((time.as_deref().ok()?, *value))).collect();
    store(&many).await?;
    check_current(&database).await?;
    until_rolled_up(&database).await?;
    assert_eq!(database.text("SELECT count(*) FROM garenne_readings").await?, "106");

    // Readings that another program deleted, with the hours marked by hand.
    let client = database.connect().await?;
    let delete = "DELETE FROM garenne_readings WHERE time < '2026-09-02Z';
                  UPDATE garenne_series SET stale = stale + '{[2026-08-30, 2026-09-02)}'";
    client.batch_execute(delete).await?;
    until_rolled_up(&database).await?;
    worker.stop().await?;
    Ok(())
}

/// A worker that is killed while it computes leaves nothing half done, and another one continues.
#[tokio::test]
async fn rollups_are_complete_after_a_worker_is_killed() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = migrated(&env).await?;
    let client = database.connect().await?;
    client
        .batch_execute(
            "INSERT INTO garenne_readings (device, metric, time, value, unit, quality, task_id, worker)
             SELECT 'd' || d, 'power', '2026-08-01Z'::timestamptz + n * interval '40 seconds', n * d, 'W', '{}', 't', 'w'
             FROM generate_series(1, 40) AS d, generate_series(1, 6000) AS n;
             INSERT INTO garenne_series SELECT device, metric, max(time), 0, 'W', '{}', now(),
                 '{[2026-08-01Z, 2026-08-05Z)}' FROM garenne_readings GROUP BY 1, 2",
        )
        .await?;
    let doomed = storing(&env, "doomed", &database)?.start().await?;
    eventually("a step is done", async || {
        let count = database.text("SELECT count(*) FROM garenne_rollups_hour").await?;
        Ok(Seen::when(count != "0", count))
    })
    .await?;
    doomed.kill().await?;
    let stale = database.text(STALE).await?;
    assert_ne!(stale, "0", "it was killed after it had computed everything");
    let next = storing(&env, "next", &database)?.start().await?;
    until_rolled_up(&database).await?;
    assert_eq!(database.text("SELECT sum(count) FROM garenne_rollups_day").await?, "240000");
    next.stop().await?;
    Ok(())
}

/// Readings go only after their rollups are computed, and the rollups outlive them, whatever arrives later.
#[tokio::test]
async fn prune_keeps_what_rollups_are_computed_from() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(&env, "storing", &database)?.start().await?;
    // The key of the lock under which rollups are computed. While a test holds it, no worker computes any.
    let holder = database.connect().await?;
    let hold = "SELECT pg_advisory_lock(hashtextextended('garenne_roll_up', 0))";
    let release = "SELECT pg_advisory_unlock(hashtextextended('garenne_roll_up', 0))";
    holder.query_one(hold, &[]).await?;
    for (id, time, value) in [
        ("a", "2020-02-01T00:10:00Z", 1.0),
        ("b", "2020-02-01T00:50:00Z", 3.0),
        ("c", "2020-03-01T00:00:00Z", 20.0),
        ("d", "2026-11-01T00:00:00Z", 21.0),
    ] {
        reading(&env, id, time, value).await?;
    }
    env.until_settled(4).await?;
    let policy = env.folder().join("retention.toml");
    let prune = async |rules: &str| {
        std::fs::write(&policy, rules)?;
        let path = policy.display().to_string();
        env.garenne(&["database", "prune", &path, "--postgres-url", &database.url()]).await
    };
    let ids = "SELECT string_agg(task_id, ' ' ORDER BY time) FROM garenne_readings";
    let year = "[[retention]]\nkeep = \"1year\"\n";
    let client = database.connect().await?;
    // Rows one by one: a series that is kept for ever keeps the partitions.
    let kept_for_ever =
        "INSERT INTO garenne_series VALUES ('d2', 'humidity', '2020-02-01 00:00:00Z', 1, NULL, '{}', now())";
    client.batch_execute(kept_for_ever).await?;
    let of_temperature = "[[retention]]\nmetric = \"temperature\"\nkeep = \"1year\"\n";
    let ended = prune(of_temperature).await?;
    assert_eq!(database.text(ids).await?, "a b c d", "{:?}", ended.stdout);
    let note = "the others are kept until their rollups are computed; run the command again";
    assert!(ended.stderr.iter().any(|line| line == note), "{:?}", ended.stderr);

    holder.query_one(release, &[]).await?;
    prune(of_temperature).await?;
    assert_eq!(database.text(ids).await?, "d");
    let hours = "SELECT string_agg(count || ' of ' || mean, ', ' ORDER BY time) FROM garenne_rollups_hour
                 WHERE time < '2026-01-01Z'";
    assert_eq!(database.text(hours).await?, "2 of 2, 1 of 20");

    // A repetition of a pruned reading would be counted twice; a reading of an hour that had none is new.
    holder.query_one(hold, &[]).await?;
    reading(&env, "again", "2020-02-01T00:10:00Z", 1.0).await?;
    reading(&env, "new", "2020-02-01T05:00:00Z", 5.0).await?;
    env.until_settled(6).await?;
    let current = "SELECT string_agg(count || ' of ' || mean, ', ' ORDER BY time)
                   FROM garenne_hourly('d1', 'temperature', '2020-01-01Z', '2021-01-01Z')";
    assert_eq!(database.text(current).await?, "2 of 2, 1 of 5, 1 of 20");
    let days = "SELECT string_agg(count || ' of ' || mean, ', ' ORDER BY time)
                FROM garenne_daily('d1', 'temperature', '2020-01-01Z', '2021-01-01Z')";
    assert_eq!(database.text(days).await?, "3 of 3, 1 of 20");
    holder.query_one(release, &[]).await?;

    // Whole partitions, and rollups by their own rules.
    client.batch_execute("DELETE FROM garenne_series WHERE device = 'd2'").await?;
    prune(year).await?;
    assert_eq!(database.text("SELECT to_regclass('garenne_readings_2020_02')").await?, "");
    assert_eq!(database.text(ids).await?, "d");
    assert_eq!(database.text(hours).await?, "2 of 2, 1 of 5, 1 of 20");
    prune("[[retention]]\nkeep = \"1year\"\nkeep_hours = \"2years\"\n").await?;
    assert_eq!(database.text(hours).await?, "");
    assert_eq!(database.text(days).await?, "3 of 3, 1 of 20");
    reading(&env, "once more", "2020-02-01T05:00:00Z", 5.0).await?;
    env.until_settled(7).await?;
    database.until_count("garenne_series WHERE stale && tstzrange(NULL, '2021-01-01Z')", 0).await?;
    assert_eq!(database.text(days).await?, "3 of 3, 1 of 20");
    prune("[[retention]]\nkeep = \"1year\"\nkeep_hours = \"1year\"\nkeep_days = \"1year\"\n").await?;
    assert_eq!(database.text(days).await?, "");
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (7, 0), "{receipt:?}");
    Ok(())
}

/// Values whose sum no number holds have a mean, and a series whose rollups cannot be computed harms only itself.
#[tokio::test]
async fn a_failing_series_stops_no_other() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = migrated(&env).await?;
    let client = database.connect().await?;
    let refuse = "ALTER TABLE garenne_rollups_hour ADD CONSTRAINT refused CHECK (device <> 'broken')";
    client.batch_execute(refuse).await?;
    let mut worker = storing(&env, "storing", &database)?.start().await?;
    let readings = [
        ("broken", "00:10", 1.0),
        ("fine", "00:10", 1.0),
        ("fine", "00:50", 3.0),
        ("huge", "00:10", 1.7e308),
        ("huge", "00:50", 1.7e308),
        ("huge", "07:00", f64::MAX),
        ("large", "00:10", 1e200),
        ("large", "00:50", 3e200),
        ("tiny", "00:10", 5e-324),
        ("tiny", "07:00", 0.0),
    ];
    for (index, (device, time, value)) in readings.iter().enumerate() {
        let time = format!("2020-02-01T{time}:00Z");
        let body = json!({"device": device, "metric": "level", "value": value, "time": time}).to_string();
        let id = with_id(&format!("r{index}"));
        env.client().publish("garenne.tasks", "reading.process", id, body.as_bytes()).await?;
    }
    env.until_settled(readings.len()).await?;
    let means = |rollups: &str| {
        format!(
            "SELECT string_agg(device || ' ' || mean, ', ' ORDER BY device, time) FROM {rollups} AS rollups"
        )
    };
    let days = "broken 1, fine 2, huge 1.7325643782874385e+308, large 2e+200, tiny 0";
    assert_eq!(database.text(&means(CURRENT_DAYS)).await?, days);

    worker.until_metric("garenne_sink_set_aside", &["part=\"rollups\""], 1.0).await?;
    let error = "rollups of broken level are not computed: new row for relation \"garenne_rollups_hour\" violates \
                 check constraint \"refused\"";
    worker.until_logged("rollups of broken level are not computed: new row for relation").await?;
    worker.until_ready().await?;
    let hours = "fine 2, huge 1.7e+308, huge 1.7976931348623157e+308, large 2e+200, tiny 0, tiny 0";
    eventually("the rollups of the others", async || {
        let found = database.text(&means("garenne_rollups_hour")).await?;
        Ok(Seen::when(found == hours, found))
    })
    .await?;
    assert_eq!(database.text(&means("garenne_rollups_day")).await?, days.replace("broken 1, ", ""));
    let url = database.url();
    let check = ["database", "check", "--postgres-url", &url];
    let checked = env.try_garenne(&check).await?;
    assert_eq!((checked.code, checked.stdout), (Some(1), vec![error.to_owned()]));

    // Readers get an answer of every kind of step.
    let dashboard = Dashboard::with_database(&env, &database.url()).await?;
    for (device, step, mean) in [
        ("huge", "20m", 1.7e308),
        ("huge", "1h", 1.7e308),
        ("huge", "1d", 1.732_564_378_287_438_5e308),
        ("broken", "1h", 1.0),
    ] {
        let period = "from=2020-02-01T00:00:00Z&to=2020-02-02T00:00:00Z";
        let path = format!("/v1/readings?device={device}&metric=level&step={step}&{period}");
        assert_eq!(dashboard.json(&path).await?["buckets"][0]["mean"], mean, "{device} {step}");
    }

    let policy = env.folder().join("retention.toml");
    std::fs::write(&policy, "[[retention]]\nkeep = \"1year\"\n")?;
    let prune = ["database", "prune", policy.to_str().context("path")?, "--postgres-url", &url];
    let kept = "SELECT string_agg(DISTINCT device, ' ' ORDER BY device) FROM garenne_readings";
    // A series whose rows may not be deleted stops no other one either.
    let protect = "CREATE FUNCTION protect() RETURNS trigger LANGUAGE plpgsql AS
                   $$ BEGIN RAISE EXCEPTION 'protected'; END $$;
                   CREATE TRIGGER protect BEFORE DELETE ON garenne_readings FOR EACH ROW
                   WHEN (OLD.device = 'fine') EXECUTE FUNCTION protect()";
    client.batch_execute(protect).await?;
    let ended = env.try_garenne(&prune).await?;
    assert_eq!(ended.code, Some(1), "{:?}", ended.stderr);
    for line in [error, "failed to remove 2 readings of fine level before "] {
        assert!(ended.stderr.iter().any(|note| note.starts_with(line)), "{line}: {:?}", ended.stderr);
    }
    assert_eq!(database.text(kept).await?, "broken fine");
    client.batch_execute("DROP TRIGGER protect ON garenne_readings").await?;

    let repair = "ALTER TABLE garenne_rollups_hour DROP CONSTRAINT refused; UPDATE garenne_series SET rollup_error = NULL";
    client.batch_execute(repair).await?;
    env.garenne(&prune).await?;
    assert_eq!(database.text(kept).await?, "");
    assert_eq!(database.text(&means("garenne_rollups_day")).await?, days);
    env.garenne(&check).await?;
    worker.until_metric("garenne_sink_set_aside", &["part=\"rollups\""], 0.0).await?;
    worker.stop().await?;
    Ok(())
}

/// Hours of many late readings become days and then one range: nothing is left out, and the row stays small.
#[tokio::test]
async fn stale_hours_are_bounded() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = migrated(&env).await?;
    let client = database.connect().await?;
    for (distance, hours, ranges) in [("2 hours", 128, 128), ("2 hours", 129, 1), ("3 days", 129, 1)] {
        let query = format!(
            "WITH hours AS (SELECT range_agg(tstzrange(time, time + interval '1 hour')) AS stale FROM generate_series(
                 '2026-01-01Z'::timestamptz, '2026-01-01Z'::timestamptz + ({hours} - 1) * interval '{distance}',
                 '{distance}') AS time),
             bounded AS (SELECT garenne_stale_with('{{}}', stale) AS bounded, stale FROM hours)
             SELECT (SELECT count(*) FROM unnest(bounded)), bounded @> stale FROM bounded"
        );
        let row = client.query_one(&query, &[]).await.context(query)?;
        assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (ranges, true), "{distance} {hours}");
    }
    Ok(())
}
