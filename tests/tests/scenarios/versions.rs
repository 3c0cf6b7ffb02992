//! With `on_conflict = "replace"`, the latest version of a reading is stored in whatever order the versions arrive, and what
//! is derived of it follows.

use std::{collections::BTreeMap, fs};

use anyhow::Result;
use garenne_tests::harness::{
    client::with_id,
    fault_proxy::FaultProxy,
    gateway::{Gateway, GatewayPlan},
    postgres::{Database, Postgres},
    spool::{spool_records, until_spooled},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::{Worker, WorkerPlan},
};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::{Value, json};

const BATCH: &str = "application/vnd.garenne.batch+json";
/// The time of the first reading in seconds.
const BEGIN: usize = 1_790_000_000;
/// The SHA-256 of the token `secret`.
const HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

fn replacing(env: &TestEnv, name: &str, database: &Database) -> Result<WorkerPlan> {
    let plan = env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url());
    Ok(plan.env("GARENNE_ON_CONFLICT", "replace"))
}

async fn start(env: &TestEnv, name: &str, database: &Database) -> Result<Worker> {
    replacing(env, name, database)?.start().await
}

fn reading(key: usize, value: f64) -> Value {
    json!({"device": "d1", "metric": "temperature", "unit": "Cel", "value": value, "time": BEGIN + key})
}

async fn post(gateway: &Gateway, readings: &Value) -> Result<Vec<String>> {
    gateway.post("/v1/readings", "application/json", readings.to_string()).await?.ids()
}

async fn publish(env: &TestEnv, id: &str, payload: &Value) -> Result<()> {
    let body = payload.to_string();
    env.client().publish("garenne.tasks", "reading.process", with_id(id), body.as_bytes()).await
}

/// Publishes records in one batch, as a gateway does.
async fn publish_batch(env: &TestEnv, id: &str, records: &[Value]) -> Result<()> {
    let properties = with_id(id).with_content_type(BATCH.into()).with_type("reading.process".into());
    let body = serde_json::to_vec(records)?;
    env.client().publish("garenne.tasks", "reading.process", properties, &body).await
}

/// The stored values with the numbers of readings that have them.
async fn counted(database: &Database) -> Result<Vec<(f64, i64)>> {
    let query = "SELECT value, count(*) FROM garenne_readings WHERE raw IS NOT NULL GROUP BY 1 ORDER BY 1";
    let rows = database.connect().await?.query(query, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Waits until the first reading has this value.
async fn until_value(database: &Database, expected: f64) -> Result<()> {
    eventually(format!("{expected} is stored"), async || {
        let stored = counted(database).await?;
        Ok(Seen::when(stored == [(expected, 1)], format_args!("{stored:?}")))
    })
    .await
}

#[tokio::test]
async fn a_repeated_task_undoes_no_correction() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = start(&env, "replacing", &database).await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let first = post(&gateway, &reading(0, 20.0)).await?;
    until_value(&database, 20.0).await?;
    post(&gateway, &reading(0, 40.0)).await?;
    until_value(&database, 40.0).await?;
    assert_eq!(post(&gateway, &reading(0, 20.0)).await?, first, "the same id");
    // Another reading after it, so that it has arrived.
    env.until_settled(3).await?;
    until_value(&database, 40.0).await?;
    // To return to the earlier value needs an id of its own.
    publish(&env, "returned", &reading(0, 20.0)).await?;
    until_value(&database, 20.0).await?;
    post(&gateway, &reading(0, 40.0)).await?;
    env.until_settled(5).await?;
    until_value(&database, 20.0).await?;

    // A reading twice in one task is that of the later record.
    publish(&env, "twice", &json!([reading(0, 1.0), reading(0, 2.0)])).await?;
    until_value(&database, 2.0).await?;
    gateway.stop().await?;
    worker.stop().await?;
    env.is_empty("garenne.dead").await
}

/// The versions of each key are published one right after the other.
#[tokio::test]
async fn the_later_of_two_versions_is_stored_by_two_workers() -> Result<()> {
    const KEYS: usize = 1_500;
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let first = start(&env, "first", &database).await?;
    let second = start(&env, "second", &database).await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    for keys in (0..KEYS).collect::<Vec<_>>().chunks(25) {
        for version in [1.0, 2.0] {
            let readings: Vec<_> = keys.iter().map(|key| reading(*key, version)).collect();
            post(&gateway, &readings.into()).await?;
        }
    }
    let latest = [(2.0, i64::try_from(KEYS)?)];
    eventually("the later versions are stored".to_owned(), async || {
        let stored = counted(&database).await?;
        Ok(Seen::when(stored == latest, format_args!("{stored:?}")))
    })
    .await?;
    gateway.stop().await?;
    first.stop().await?;
    second.stop().await?;
    // Nothing came after them.
    env.is_empty("garenne.tasks.fast").await?;
    assert_eq!(counted(&database).await?, latest);
    env.is_empty("garenne.dead").await
}

#[tokio::test]
async fn the_latest_version_is_stored_in_any_order_of_arrival() -> Result<()> {
    const KEYS: usize = 1_000;
    let mut random = StdRng::seed_from_u64(suite::seed(12)?);
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let first = start(&env, "first", &database).await?;
    let second = start(&env, "second", &database).await?;
    // The first version is repeated after the second one, and the third one is the last.
    let mut records: Vec<_> = (0..KEYS)
        .flat_map(|key| {
            let record = move |version: usize, id: &str, value: f64| json!({
                "id": format!("{key}-{id}"), "version": format!("{BEGIN}000000-{version}"), "payload": reading(key, value)
            });
            let last = (key % 2 == 0).then(|| record(3, "c", 10.0));
            [record(0, "a", 20.0), record(1, "b", 40.0), record(2, "a", 20.0)].into_iter().chain(last)
        })
        .collect();
    records.shuffle(&mut random);
    for (index, records) in records.chunks(50).enumerate() {
        publish_batch(&env, &format!("batch-{index}"), records).await?;
    }
    env.until_settled(records.len().div_ceil(50)).await?;
    let half = i64::try_from(KEYS / 2)?;
    assert_eq!(counted(&database).await?, [(10.0, half), (40.0, half)]);
    // What is known of a series is that of its readings.
    let query = "SELECT last_value FROM garenne_series WHERE metric = 'temperature'";
    eventually("the newest reading of the series", async || {
        let last: f64 = database.connect().await?.query_one(query, &[]).await?.get(0);
        Ok(Seen::when(last == 40.0, last))
    })
    .await?;
    first.stop().await?;
    second.stop().await?;
    env.is_empty("garenne.dead").await
}

/// A site accepts the first version while its link is cut, and the second one reaches the central gateway before it.
#[tokio::test]
async fn a_forwarded_reading_keeps_the_version_of_the_site_that_accepted_it() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = start(&env, "replacing", &database).await?;
    let (senders, token, spool) =
        (env.folder().join("senders.toml"), env.folder().join("token"), env.folder().join("site"));
    let entry = format!(
        "[[sender]]\nname = \"site-1\"\ntoken_sha256 = \"{HASH}\"\ndevices = [\"*\"]\nforward = true\n"
    );
    fs::write(&senders, entry)?;
    fs::write(&token, "secret\n")?;
    let central_plan = GatewayPlan::new(&env)?.option("--tokens", &senders);
    let mut central = central_plan.start().await?;
    central.until_ready(true).await?;
    let link = FaultProxy::start(central_plan.address()).await?;
    let plan = GatewayPlan::without_broker()?.option("--spool", &spool).option("--spool-min-free", "0");
    let plan = plan.option("--forward", format!("http://{}", link.address()));
    let mut site = plan.option("--forward-token-file", &token).start().await?;
    site.until_ready(true).await?;
    link.cut();
    post(&site, &reading(0, 20.0)).await?;
    assert_eq!(spool_records(&spool).await?, 1);
    publish(&env, "second", &reading(0, 40.0)).await?;
    until_value(&database, 40.0).await?;
    link.heal();
    until_spooled(&spool, |records| records == 0).await?;
    env.until_settled(2).await?;
    until_value(&database, 40.0).await?;
    site.stop().await?;
    central.stop().await?;
    worker.stop().await?;
    Ok(())
}

/// The values of the device's derived metrics.
async fn derived(database: &Database) -> Result<BTreeMap<String, f64>> {
    let query = "SELECT metric, value FROM garenne_readings WHERE raw IS NULL";
    let rows = database.connect().await?.query(query, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

async fn until_dew_point(database: &Database, expected: Option<f64>) -> Result<()> {
    eventually(format!("the dew point is {expected:?}"), async || {
        let found = derived(database).await?.get("dew_point").copied();
        let is_near = |(one, other): (f64, f64)| (one - other).abs() < 0.01;
        let seen = found.zip(expected).map_or(found.is_none() && expected.is_none(), is_near);
        Ok(Seen::when(seen, format_args!("{found:?}")))
    })
    .await
}

#[tokio::test]
async fn derived_values_and_their_alarms_follow_a_replaced_reading() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let rules = env.folder().join("rules.toml");
    fs::write(&rules, "[[rule]]\nname = \"mould\"\nmetric = \"dew_point\"\nunit = \"Cel\"\nabove = 20\n")?;
    let worker = replacing(&env, "replacing", &database)?.option("--rules", &rules).start().await?;
    let humidity = json!({"device": "d1", "metric": "humidity", "unit": "%RH", "value": 95.0, "time": BEGIN});
    publish(&env, "pair", &json!([reading(0, 27.0), humidity])).await?;
    let open =
        |wanted| database.until_count("garenne_alarms WHERE ended IS NULL AND withdrawn_at IS NULL", wanted);
    until_dew_point(&database, Some(26.13)).await?;
    open(1).await?;
    // Nothing follows from what cannot be.
    publish(&env, "impossible", &reading(0, -400.0)).await?;
    until_dew_point(&database, None).await?;
    open(0).await?;
    assert_eq!(database.count("garenne_series WHERE metric = 'dew_point'").await?, 0);
    publish(&env, "right", &reading(0, 28.0)).await?;
    until_dew_point(&database, Some(27.12)).await?;
    open(1).await?;
    publish(&env, "cool", &reading(0, 10.0)).await?;
    until_dew_point(&database, Some(9.24)).await?;
    open(0).await?;
    worker.stop().await?;
    Ok(())
}

/// A temperature and a humidity in one batch, and two later versions of the temperature. The first temperature is usable in
/// one half of the readings.
#[tokio::test]
async fn derived_values_are_the_same_in_every_order_of_arrival() -> Result<()> {
    const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = start(&env, "replacing", &database).await?;
    let histories: Vec<_> = ORDERS.iter().flat_map(|order| [(order, 27.0), (order, -400.0)]).collect();
    for arrival in 0..3 {
        for (key, (order, first)) in histories.iter().enumerate() {
            let version = order[arrival];
            let record = |payload: Value| {
                let id = format!("{key}-{version}-{}", payload["metric"]);
                json!({"id": id, "payload": payload, "version": format!("{}-0", (BEGIN + version) * 1_000_000)})
            };
            let humidity = json!({"device": "d1", "metric": "humidity", "unit": "%RH", "value": 95.0, "time": BEGIN + key});
            let records = match version {
                0 => vec![record(reading(key, *first)), record(humidity)],
                1 => vec![record(reading(key, 20.0))],
                _ => vec![record(reading(key, 10.0))],
            };
            publish_batch(&env, &format!("{key}-{version}"), &records).await?;
        }
        env.until_settled((arrival + 1) * histories.len()).await?;
    }
    let query =
        "SELECT extract(epoch FROM time)::int8 - $1, round(value::numeric, 2)::float8 FROM garenne_readings
                 WHERE metric = 'dew_point' ORDER BY 1";
    let rows = database.connect().await?.query(query, &[&i64::try_from(BEGIN)?]).await?;
    let found: Vec<(i64, f64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let expected: Vec<_> = (0..).zip([9.24; 12]).collect();
    assert_eq!(found, expected);
    worker.stop().await?;
    env.is_empty("garenne.dead").await
}

/// A program from before this has replaced a reading, and left what was derived of it.
#[tokio::test]
async fn a_recalibration_finds_derived_values_that_did_not_follow() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = start(&env, "replacing", &database).await?;
    let humidity = |key| json!({"device": "d1", "metric": "humidity", "unit": "%RH", "value": 95.0, "time": BEGIN + key});
    publish(&env, "pair", &json!([reading(0, 27.0), humidity(0)])).await?;
    // Readings of different tasks, of which nothing is derived.
    publish(&env, "alone", &reading(1, 27.0)).await?;
    publish(&env, "too", &humidity(1)).await?;
    env.until_settled(3).await?;
    worker.stop().await?;
    let client = database.connect().await?;
    client
        .batch_execute("UPDATE garenne_readings SET value = 10, raw = 10 WHERE metric = 'temperature'")
        .await?;
    let calibration = env.folder().join("calibration.toml");
    fs::write(&calibration, "")?;
    let (url, calibration) = (database.url(), calibration.display().to_string());
    let arguments =
        ["readings", "recalibrate", "--postgres-url", &url, "--calibration", &calibration, "--json"];
    let report = env.garenne(&arguments).await?;
    until_dew_point(&database, Some(9.24)).await?;
    assert_eq!(derived(&database).await?.len(), 3, "nothing of the other pair");
    let report: Value = serde_json::from_str(&report.stdout.join("\n"))?;
    assert_eq!((&report["derived_written"], &report["derived_removed"]), (&json!(3), &json!(0)));
    let again = env.garenne(&arguments).await?;
    let again: Value = serde_json::from_str(&again.stdout.join("\n"))?;
    assert_eq!(again["derived_written"], 0, "{again}");
    Ok(())
}
