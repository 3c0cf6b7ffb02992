//! The tables of the Postgres sink: their versions, their partitions, the rights of a worker, and rows that are refused.

use anyhow::Result;
use garenne_tests::harness::{
    client::with_id,
    postgres::{Database, Postgres},
    process::Ended,
    test_env::TestEnv,
    worker::WorkerPlan,
};
use serde_json::json;
use uuid::Uuid;

/// The readings as they were before the tables had versions.
const OLD_READINGS: &str = "CREATE TABLE garenne_readings (
    device text, metric text, time timestamptz, value double precision NOT NULL, unit text,
    raw double precision, quality text[] NOT NULL, task_id text NOT NULL, worker text NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (device, metric, time))";

pub(super) fn storing(env: &TestEnv, name: &str, url: &str) -> Result<WorkerPlan> {
    Ok(env.worker(name)?.option("--sink", "postgres").option("--postgres-url", url))
}

pub(super) async fn reading(env: &TestEnv, id: &str, time: &str, value: f64) -> Result<()> {
    let body = json!({"device": "d1", "metric": "temperature", "value": value, "unit": "Cel", "time": time});
    env.client().publish("garenne.tasks", "reading.process", with_id(id), body.to_string().as_bytes()).await
}

pub(super) async fn command(env: &TestEnv, url: &str, arguments: &[&str]) -> Result<Ended> {
    let arguments = ["database"].into_iter().chain(arguments.iter().copied());
    env.try_garenne(&arguments.chain(["--postgres-url", url]).collect::<Vec<_>>()).await
}

/// A user with a password who may use nothing yet. Returns the name and the URL.
async fn new_role(database: &Database) -> Result<(String, String)> {
    let role = format!("role_{}", Uuid::new_v4().simple());
    let create = format!("CREATE ROLE {role} LOGIN PASSWORD 'secret'");
    database.connect().await?.batch_execute(&create).await?;
    let url = database.url().replacen("garenne:garenne@", &format!("{role}:secret@"), 1);
    Ok((role, url))
}

/// Tables from before there were versions keep their rows, which later readings are compared with.
#[tokio::test]
async fn old_tables_are_adopted_with_their_rows() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let client = database.connect().await?;
    client.batch_execute(OLD_READINGS).await?;
    client
        .batch_execute(
            "INSERT INTO garenne_readings (device, metric, time, value, unit, raw, quality, task_id, worker) VALUES
             ('d1', 'temperature', '2026-01-01 00:00:00Z', 20.5, 'Cel', 20, '{}', 'old', 'w'),
             ('d1', 'temperature', '2099-01-01 00:00:00Z', 21, 'Cel', 21, '{}', 'ahead', 'w')",
        )
        .await?;
    let worker = storing(&env, "adopting", &database.url())?.start().await?;
    // The calibrated value of the stored one differs, its raw value does not: no conflict.
    reading(&env, "same", "2026-01-01T00:00:00Z", 20.0).await?;
    reading(&env, "other", "2026-01-01T00:00:00Z", 22.0).await?;
    reading(&env, "new", "2026-01-01T00:01:00Z", 22.0).await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    worker.until_metric("garenne_settlements_total", &["settlement=\"acked\""], 2.0).await?;
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("other", "conflict"));
    assert_eq!(dead.text("garenne-error"), "conflicting value for d1 temperature: stored 20, received 22");
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (2, 1), "{receipt:?}");
    let places =
        "SELECT string_agg(task_id || ' ' || tableoid::regclass, ', ' ORDER BY time) FROM garenne_readings";
    assert_eq!(
        database.text(places).await?,
        "old garenne_readings_legacy, new garenne_readings_legacy, ahead garenne_readings_default"
    );
    assert_eq!(database.text("SELECT last_value FROM garenne_series").await?, "21");
    Ok(())
}

#[tokio::test]
async fn a_foreign_table_of_the_same_name_is_refused_and_left_alone() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let client = database.connect().await?;
    client.batch_execute("CREATE TABLE garenne_alarms (id int PRIMARY KEY, rule text, note text)").await?;
    let Ended { code, stderr, .. } =
        storing(&env, "refused", &database.url())?.launch().await?.ended().await?;
    let error = stderr.last().cloned().unwrap_or_default();
    assert_eq!(code, Some(1), "{error}");
    for part in [
        "table garenne_alarms: column id is integer instead of text",
        "table garenne_alarms has no column since",
        "rename it, or use another prefix",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(database.text("SELECT to_regclass('garenne_readings')").await?, "");
    Ok(())
}

/// A worker that may only read and write rows needs tables of its version, and stores in partitions that it adds.
#[tokio::test]
async fn a_worker_needs_no_right_to_change_tables() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let (role, url) = new_role(&database).await?;
    let Ended { code, stderr, .. } = storing(&env, "early", &url)?.launch().await?.ended().await?;
    let error = stderr.last().cloned().unwrap_or_default();
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("the tables garenne_* have version 0, and version "), "{error}");
    assert!(error.ends_with("; run `garenne database migrate` as their owner"), "{error}");

    let before = command(&env, &database.url(), &["check"]).await?;
    assert_eq!(before.code, Some(1), "{:?}", before.stdout);
    let migrated = command(&env, &database.url(), &["migrate", "--grant-to", &role]).await?;
    assert_eq!(migrated.code, Some(0), "{:?}", migrated.stderr);
    assert!(migrated.stderr.iter().any(|line| line == "applied V1__tables"), "{:?}", migrated.stderr);
    let again = command(&env, &database.url(), &["migrate"]).await?;
    assert_eq!(again.code, Some(0));
    assert!(again.stderr.iter().any(|line| line.ends_with("nothing to do")), "{:?}", again.stderr);
    let after = command(&env, &url, &["check"]).await?;
    assert_eq!(after.code, Some(0), "{:?}", after.stdout);

    let worker = storing(&env, "limited", &url)?.start().await?;
    for (id, time) in [("late", "2024-02-29T12:00:00Z"), ("ancient", "1999-12-31T23:59:59Z")] {
        reading(&env, id, time, 20.0).await?;
    }
    env.until_settled(2).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (2, 0), "{receipt:?}");
    let places =
        "SELECT string_agg(task_id || ' ' || tableoid::regclass, ', ' ORDER BY time) FROM garenne_readings";
    assert_eq!(
        database.text(places).await?,
        "ancient garenne_readings_default, late garenne_readings_2024_02"
    );
    Ok(())
}

/// A constraint and a trigger of the user refuse single rows, which become dead letters. The rest is stored.
#[tokio::test]
async fn a_refused_row_stops_no_other() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(&env, "storing", &database.url())?.start().await?;
    database
        .connect()
        .await?
        .batch_execute(
            "ALTER TABLE garenne_readings ADD CONSTRAINT sane CHECK (value < 100);
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF NEW.value = 13 THEN RAISE EXCEPTION 'thirteen is not stored here'; END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON garenne_readings FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await?;
    for n in 0..20 {
        let value = match n {
            3 => 1000.0,
            11 => 13.0,
            _ => 20.0,
        };
        reading(&env, &format!("r{n}"), &format!("2026-11-01T00:00:{n:02}Z"), value).await?;
    }
    let mut dead = env.take_all("garenne.dead", 2).await?;
    dead.sort_by_key(|dead| dead.id().to_owned());
    let reasons: Vec<_> = dead.iter().map(|dead| (dead.id(), dead.text("garenne-reason"))).collect();
    assert_eq!(reasons, [("r11", "rejected".to_owned()), ("r3", "rejected".to_owned())]);
    let errors: Vec<_> = dead.iter().map(|dead| dead.text("garenne-error")).collect();
    assert!(
        errors[0].contains("thirteen is not stored here; raised in PL/pgSQL function refuse()"),
        "{errors:?}"
    );
    assert!(errors[1].contains("violates check constraint \"sane\""), "{errors:?}");
    env.until_settled(20).await?;
    assert_eq!(database.text("SELECT count(*) FROM garenne_readings").await?, "18");
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (18, 2), "{receipt:?}");
    Ok(())
}

/// Tables that are not as the worker needs them make it not ready, with the reason. No task is lost or dead.
#[tokio::test]
async fn a_missing_column_is_a_state_of_the_worker() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let mut worker = storing(&env, "storing", &database.url())?.start().await?;
    let client = database.connect().await?;
    client.batch_execute("ALTER TABLE garenne_readings RENAME COLUMN raw_unit TO gone").await?;
    reading(&env, "waits", "2026-11-01T00:00:00Z", 20.0).await?;
    worker.until_not_ready_for("raw_unit").await?;
    worker.until_metric("garenne_sink_up", &["sink=\"postgres\""], 0.0).await?;
    let check = command(&env, &database.url(), &["check"]).await?;
    assert_eq!(check.code, Some(1));
    assert_eq!(check.stdout, ["table garenne_readings has no column raw_unit"]);
    client.batch_execute("ALTER TABLE garenne_readings RENAME COLUMN gone TO raw_unit").await?;
    env.until_settled(1).await?;
    worker.until_ready().await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (1, 0), "{receipt:?}");
    Ok(())
}

/// Workers that start together change the tables once.
#[tokio::test]
async fn workers_that_start_together_migrate_once() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let url = database.url();
    let plans = ["one", "two", "three"].map(|name| storing(&env, name, &url));
    let [one, two, three] = plans;
    let (one, two, three) = tokio::try_join!(one?.start(), two?.start(), three?.start())?;
    let history = "SELECT string_agg(version::text, ' ' ORDER BY applied_on) = string_agg(version::text, ' ' ORDER BY version)
                   AND count(*) = max(version) FROM garenne_schema_history";
    assert_eq!(database.text(history).await?, "true");
    for worker in [one, two, three] {
        worker.stop().await?;
    }
    Ok(())
}

/// A policy removes whole partitions and single readings, and its dry run removes nothing.
#[tokio::test]
async fn prune_removes_what_the_policy_no_longer_keeps() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let url = database.url();
    let worker = storing(&env, "storing", &url)?.start().await?;
    for (id, time) in [("first", "2020-02-01T00:00:00Z"), ("second", "2020-03-01T00:00:00Z")] {
        reading(&env, id, time, 20.0).await?;
    }
    env.until_settled(2).await?;
    worker.stop().await?;
    let ids = "SELECT string_agg(task_id, ' ' ORDER BY time) FROM garenne_readings";
    let policy = env.folder().join("retention.toml");
    let prune = async |text: &str, more: &[&str]| {
        std::fs::write(&policy, text)?;
        let path = policy.display().to_string();
        command(&env, &url, &[&["prune", path.as_str()], more].concat()).await
    };
    let years = "[[retention]]\nmetric = \"temp*\"\nkeep = \"1year\"\n";
    let dry = prune(years, &["--dry-run"]).await?;
    assert_eq!(dry.code, Some(0), "{:?}", dry.stderr);
    let partitions =
        ["2020_02", "2020_03"].map(|month| format!("partition garenne_readings_{month}, 1 readings"));
    assert_eq!(dry.stdout, partitions.clone().map(|partition| format!("would remove {partition}")));
    assert_eq!(database.text(ids).await?, "first second");

    let none = prune("[[retention]]\nmetric = \"humidity\"\nkeep = \"1d\"\n", &[]).await?;
    assert_eq!(none.stdout, ["nothing to remove"]);
    // A series that is kept for ever keeps the partitions; the others' readings go one by one.
    let client = database.connect().await?;
    client
        .batch_execute(
            "INSERT INTO garenne_readings (device, metric, time, value, quality, task_id, worker)
             VALUES ('d2', 'humidity', '2020-02-01 00:00:00Z', 1, '{}', 'kept', 'w');
             INSERT INTO garenne_series VALUES ('d2', 'humidity', '2020-02-01 00:00:00Z', 1, NULL, '{}', now())",
        )
        .await?;
    let rows = prune(years, &[]).await?;
    assert_eq!(rows.stdout.len(), 1, "{:?}", rows.stdout);
    assert!(rows.stdout[0].starts_with("removed 2 readings of d1 temperature before "), "{:?}", rows.stdout);
    assert_eq!(database.text(ids).await?, "kept");
    let all = prune("results = \"1year\"\n[[retention]]\nkeep = \"1year\"\n", &[]).await?;
    assert_eq!(all.code, Some(0), "{:?}", all.stderr);
    let now = ["2020_02, 1", "2020_03, 0"]
        .map(|rows| format!("removed partition garenne_readings_{rows} readings"));
    assert_eq!(all.stdout, now);
    assert_eq!(database.text("SELECT to_regclass('garenne_readings_2020_02')").await?, "");
    assert_eq!(database.text("SELECT count(*) FROM garenne_readings").await?, "0");
    assert_eq!(database.text("SELECT count(*) FROM garenne_results").await?, "2");
    Ok(())
}
