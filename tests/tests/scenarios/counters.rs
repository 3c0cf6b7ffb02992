//! Cumulative counters: the consumption between stored readings, in any order of arrival.

use std::time::SystemTime;

use anyhow::Result;
use garenne_protocol::{
    sensor::{Count, Counter},
    task::{ContentType, Kind, NewTask, TaskId, Version},
};
use garenne_tests::harness::{
    client::with_id,
    dashboard::Dashboard,
    postgres::{Database, Postgres},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::Worker,
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::{Value, json};

/// 2026-09-21T12:00:00Z
const BEGIN: i64 = 1_790_078_400 - 86_400;

const CALIBRATION: &str = r#"
    [[calibration]]
    metric = "energy"
    unit = "kWh"
    counter = true

    [[calibration]]
    metric = "pulses"
    counter = true
    wraps_at = 65536
    max_per_hour = 600
"#;

fn reading(device: &str, metric: &str, minute: i64, value: f64) -> Value {
    let time = BEGIN + minute * 60;
    let mut reading = json!({"device": device, "metric": metric, "value": value, "time": time});
    if metric == "energy" {
        reading["unit"] = json!("kWh");
    }
    reading
}

async fn publish(env: &TestEnv, id: &str, body: &Value) -> Result<()> {
    env.client().publish("garenne.tasks", "reading.process", with_id(id), body.to_string().as_bytes()).await
}

/// By the worker's own figures: those of the management API are seconds old.
async fn until_acked(worker: &Worker, count: usize) -> Result<()> {
    let labels = ["lane=\"fast\"", "settlement=\"acked\""];
    worker.until_metric("garenne_settlements_total", &labels, count as f64).await
}

/// Begin, in hours, and consumption of each hour of a device.
async fn hours(database: &Database, device: &str, metric: &str) -> Result<Vec<(i64, f64)>> {
    let hours = format!(
        "SELECT ((extract(epoch FROM time) - {BEGIN}) / 3600)::int8, consumption
         FROM garenne_hourly($1, $2, '2026-01-01Z', '2027-01-01Z') ORDER BY 1"
    );
    let rows = database.connect().await?.query(&hours, &[&device, &metric]).await?;
    Ok(rows.iter().map(|row| (row.get(0), (row.get::<_, f64>(1) * 1e6).round() / 1e6)).collect())
}

/// Resets, wraps, a momentary zero and an exchanged meter, in order and shuffled, repeated and replaced: hours, days, the
/// read API and a rule agree, and so do the two forms of the rule for one step.
#[tokio::test]
async fn consumption_is_the_same_in_every_order_of_arrival() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let file = |name: &str, text: &str| {
        let path = env.folder().join(name);
        std::fs::write(&path, text).map(|()| path.display().to_string())
    };
    let rules = "[[rule]]\nname = \"much\"\nmetric = \"energy\"\nunit = \"Wh\"\nmore_than = 20000\nin = \"1h\"\n
                 [[rule]]\nname = \"jump\"\nmetric = \"energy\"\nunit = \"kWh\"\nfaster_than = 100\nper = \"1h\"\n";
    let worker = env
        .worker("storing")?
        .option("--sink", "postgres")
        .option("--postgres-url", database.url())
        .env("GARENNE_ON_CONFLICT", "replace")
        .env("GARENNE_CALIBRATION", file("calibration.toml", CALIBRATION)?)
        .env("GARENNE_RULES", file("rules.toml", rules)?)
        .start()
        .await?;
    let energy = [
        (0, 15_508.51),
        (30, 0.0),
        (50, 15_508.55),
        (70, 15_520.0),
        // Restarted at zero: 15 until then, and 25 more.
        (130, 15.0),
        (150, 40.0),
        // Nothing for some hours, and then all of it in the hour of the next reading.
        (400, 50.0),
    ];
    let pulses = [(0, 65_500.0), (10, 65_530.0), (20, 14.0), (30, 20_000.0), (61, 20_007.0)];
    let (mut wrong, mut right) = (Vec::new(), Vec::new());
    for (metric, readings) in [("energy", &energy[..]), ("pulses", &pulses[..])] {
        for (minute, value) in readings {
            right.push(reading("shuffled", metric, *minute, *value));
            if minute % 20 == 10 {
                wrong.push(reading("shuffled", metric, *minute, value + 1.0));
            }
        }
    }
    // The first version of some readings is wrong. Each reading is a task, and workers run tasks in any order.
    let mut random = StdRng::seed_from_u64(suite::seed(31)?);
    right.shuffle(&mut random);
    for (version, readings) in [("wrong", &wrong), ("right", &right)] {
        for (number, reading) in readings.iter().enumerate() {
            publish(&env, &format!("{version} {number}"), reading).await?;
        }
        until_acked(&worker, wrong.len() + if version == "right" { right.len() } else { 0 }).await?;
    }
    let ordered: Value =
        energy.iter().map(|(minute, value)| reading("ordered", "energy", *minute, *value)).collect();
    for id in ["once", "again"] {
        publish(&env, id, &ordered).await?;
    }
    until_acked(&worker, wrong.len() + right.len() + 2).await?;
    let expected = [(0, 0.04), (1, 11.45), (2, 40.0), (6, 10.0)];
    let pulses = [(0, 30.0 + 20.0), (1, 7.0)];
    let check = async || {
        assert_eq!(hours(&database, "ordered", "energy").await?, expected);
        assert_eq!(hours(&database, "shuffled", "energy").await?, expected);
        assert_eq!(hours(&database, "shuffled", "pulses").await?, pulses);
        anyhow::Ok(())
    };
    check().await?;
    let stale =
        "SELECT count(*) FROM garenne_series WHERE stale && tstzrange(NULL, now() - interval '2 hours')";
    eventually("every rollup is computed", async || {
        let stale = database.text(stale).await?;
        Ok(Seen::when(stale == "0", format!("{stale} stale series")))
    })
    .await?;
    check().await?;
    let days = "SELECT round(sum(consumption)::numeric, 6) FROM garenne_rollups_day WHERE metric = 'energy' GROUP BY device";
    assert_eq!(
        database.text(&format!("SELECT string_agg(round::text, ' ') FROM ({days}) AS days")).await?,
        "61.490000 61.490000"
    );
    let flagged =
        "SELECT string_agg(DISTINCT array_to_string(quality, ',') || ' ' || value, ' ') FROM garenne_readings
                   WHERE quality <> '{}'";
    assert_eq!(database.text(flagged).await?, "counter-zero 0");

    // Neither the zero nor the restart is a jump; 40 kWh in the hour before 150 are too much.
    let alarms =
        "SELECT string_agg(device || ' ' || rule || ' ' || round(value::numeric), ', ' ORDER BY device)
                  FROM garenne_alarms WHERE withdrawn_at IS NULL";
    assert_eq!(database.text(alarms).await?, "ordered much 40000, shuffled much 40000");

    let dashboard = Dashboard::with_database(&env, &database.url()).await?;
    for (step, wanted) in [("1h", "11.45"), ("20m", "11.45")] {
        let path = format!(
            "/v1/readings?device=shuffled&metric=energy&from={}&to={}&step={step}&format=csv",
            BEGIN + 3600,
            BEGIN + 7200
        );
        let answer = dashboard.get(&path).await?.text().await?;
        let consumption = answer.lines().nth(1).and_then(|line| line.rsplit(',').next()).map(str::to_owned);
        let consumption: f64 = consumption.unwrap_or_default().parse()?;
        assert_eq!(format!("{consumption:.2}"), wanted, "{answer}");
    }

    // The rule for one step, in both languages.
    let client = database.connect().await?;
    let step = "SELECT garenne_counter_step($1, to_timestamp(0), $2, to_timestamp($5::float8),
                                            to_timestamp($3::float8), $4, to_timestamp($6::float8))";
    let mut pick = |choices: &[f64]| choices[random.random_range(0..choices.len())];
    for _ in 0..500 {
        let counter = Counter {
            wraps_at: Some(pick(&[0.0, 100.0, 65_536.0])).filter(|wraps_at| *wraps_at > 0.0),
            max_per_hour: Some(pick(&[0.0, 40.0, 1e6])).filter(|most| *most > 0.0),
        };
        let (base, value) = (
            pick(&[0.5, 3.0, 99.0, 65_530.0, -4.0, 1.7e308]),
            pick(&[0.5, 4.0, 98.0, 65_535.0, -5.0, -1.7e308]),
        );
        let seconds = pick(&[1.0, 1800.0, 3600.0, 1e6]);
        let parameters = tokio_postgres::types::Json(counter);
        let mut start = || Some(pick(&[-20.0, -10.0, 1800.0, f64::NAN])).filter(|start| !start.is_nan());
        let (base_start, start) = (start(), start());
        let query: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&parameters, &base, &seconds, &value, &base_start, &start];
        let stored: f64 = client.query_one(step, &query).await?.get(0);
        let micros = |seconds: f64| (seconds * 1e6) as i64;
        let count = |at, value, start: Option<f64>| Count { at: micros(at), value, start: start.map(micros) };
        let judged = counter.step(count(0.0, base, base_start), count(seconds, value, start));
        assert!(
            (stored - judged).abs() < 1e-9,
            "{counter:?} {base} {value} {seconds} {base_start:?} {start:?}: {stored} and {judged}"
        );
    }
    worker.stop().await?;
    Ok(())
}

/// Readings say themselves that they are those of a counter: a SenML sum, start times as OTLP has them, and a width as a map
/// has it. Shuffled and in order the consumption is the same, also where some of the readings say nothing.
#[tokio::test]
async fn readings_declare_counters() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let rules = env.folder().join("rules.toml");
    std::fs::write(
        &rules,
        "[[rule]]\nname = \"much\"\nmetric = \"requests\"\nmore_than = 100\nin = \"1h\"\n",
    )?;
    let worker = env
        .worker("storing")?
        .option("--sink", "postgres")
        .option("--postgres-url", database.url())
        .env("GARENNE_RULES", rules.display().to_string())
        .start()
        .await?;
    let counted = |device: &str, metric: &str, minute, value: f64, counter: Value| {
        let mut reading = reading(device, metric, minute, value);
        reading["counter"] = counter;
        reading
    };
    let start = |minute: i64| json!({"start": BEGIN + minute * 60});
    let width = || json!({"wraps_at": 65536, "max_per_hour": 600});
    let mut random = StdRng::seed_from_u64(suite::seed(32)?);
    let mut published = 0;
    for (device, is_shuffled) in [("ordered", false), ("shuffled", true)] {
        let sum = |minute: i64, sum: f64| json!([{"n": format!("{device}:power"), "u": "W", "v": 10, "s": sum, "t": BEGIN + minute * 60}]);
        let mut bodies = vec![
            counted(device, "requests", 0, 1000.0, start(-60)),
            counted(device, "requests", 10, 1010.0, start(-60)),
            // Restarted, and already higher than before.
            counted(device, "requests", 70, 1200.0, start(20)),
            counted(device, "requests", 80, 1205.0, start(20)),
            counted(device, "pulses", 0, 65_500.0, width()),
            reading(device, "pulses", 10, 65_530.0),
            counted(device, "pulses", 20, 14.0, width()),
            reading(device, "pulses", 70, 24.0),
            sum(0, 3600.0),
            sum(30, 7200.0),
            sum(90, 100.0),
        ];
        if is_shuffled {
            bodies.shuffle(&mut random);
        }
        for (number, body) in bodies.iter().enumerate() {
            publish(&env, &format!("{device} {number}"), body).await?;
            published += 1;
            if !is_shuffled {
                until_acked(&worker, published).await?;
            }
        }
    }
    until_acked(&worker, published).await?;
    for device in ["ordered", "shuffled"] {
        assert_eq!(hours(&database, device, "requests").await?, [(0, 10.0), (1, 1205.0)], "{device}");
        assert_eq!(hours(&database, device, "pulses").await?, [(0, 50.0), (1, 10.0)], "{device}");
        assert_eq!(hours(&database, device, "power_sum").await?, [(0, 3600.0), (1, 100.0)], "{device}");
    }
    let units = "SELECT string_agg(DISTINCT unit, ' ') FROM garenne_readings WHERE metric = 'power_sum'";
    assert_eq!(database.text(units).await?, "J");
    let alarms = "SELECT string_agg(device || ' ' || value, ', ' ORDER BY device) FROM garenne_alarms
                  WHERE withdrawn_at IS NULL";
    assert_eq!(database.text(alarms).await?, "ordered 1200, shuffled 1200");
    worker.stop().await?;
    Ok(())
}

/// Every order of a few things.
fn orders<T: Clone>(things: &[T]) -> Vec<Vec<T>> {
    if things.is_empty() {
        return vec![Vec::new()];
    }
    let with_first = |first: usize| {
        let mut others = things.to_vec();
        let first = others.remove(first);
        orders(&others).into_iter().map(move |others| [vec![first.clone()], others].concat())
    };
    (0..things.len()).flat_map(with_first).collect()
}

/// The second of a reading, its value, and the counter that it declares.
type Declared = (i64, f64, Option<Value>);

/// A metric, its readings, and its consumption from each second on.
type History<'a> = (&'a str, &'a [Declared], &'a [(i64, f64)]);

/// Readings that declare different counters, and others that declare none, each stored before the next one is sent: the
/// consumption is the same in every order. The newest declaration counts, a start time holds for its own reading, and a zero
/// that declares nothing says nothing.
#[tokio::test]
async fn what_readings_declare_counts_in_every_order_of_arrival() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = env
        .worker("storing")?
        .option("--sink", "postgres")
        .option("--postgres-url", database.url())
        .start()
        .await?;
    let start = |minute: i64| json!({"start": BEGIN + minute * 60});
    let histories: [History<'_>; 3] = [
        (
            "width",
            &[
                (0, 65_530.0, Some(json!({"wraps_at": 100_000}))),
                (10, 4.0, Some(json!({"wraps_at": 65_536}))),
                (20, 20.0, None),
                (70, 6.0, None),
            ],
            &[(0, 26.0), (1, 6.0)],
        ),
        (
            "bound",
            &[
                (0, 10.0, Some(json!(true))),
                (10, 500.0, Some(json!({"max_per_hour": 60}))),
                (20, 0.0, None),
                (30, 505.0, None),
            ],
            &[(0, 5.0)],
        ),
        (
            "restarts",
            &[(0, 10.0, Some(start(-60))), (10, 12.0, Some(start(5))), (20, 0.0, None), (70, 13.0, None)],
            &[(0, 12.0), (1, 1.0)],
        ),
    ];
    let mut published = 0;
    for (metric, readings, expected) in histories {
        let orders = orders(readings);
        // The first reading of each order, then the second ones: each is stored before the next one of its device is sent.
        for place in 0..readings.len() {
            for (number, order) in orders.iter().enumerate() {
                let (minute, value, counter) = &order[place];
                let mut body = reading(&format!("order-{number}"), metric, *minute, *value);
                if let Some(counter) = counter {
                    body["counter"] = counter.clone();
                }
                publish(&env, &format!("{metric} {number} {minute}"), &body).await?;
            }
            published += orders.len();
            until_acked(&worker, published).await?;
        }
        for (number, order) in orders.iter().enumerate() {
            let found = hours(&database, &format!("order-{number}"), metric).await?;
            let found: Vec<_> = found.into_iter().filter(|(_, consumption)| *consumption != 0.0).collect();
            assert_eq!(found, expected, "{metric}: {order:?}");
        }
    }
    worker.stop().await?;
    Ok(())
}

/// A minute, a value, and further fields of a reading. The place is its version.
type Sent = (i64, f64, Value);

/// Repetitions and versions of a reading that say more or less of its unit and its counter: the consumption and its alarms are
/// the same in every order of arrival, whether another value is a conflict or replaces the stored one.
#[tokio::test]
async fn repetitions_that_say_more_or_less_count_alike_in_every_order_of_arrival() -> Result<()> {
    let begin = |minute: i64| BEGIN + minute * 60;
    let counter = || json!({"counter": true});
    let wraps_at = |width: u32| json!({"counter": {"wraps_at": width}});
    let meter = |unit: &str| json!({"counter": true, "unit": unit});
    let both: [(&str, Vec<Sent>, f64); 5] = [
        (
            "said",
            vec![
                (0, 200.0, json!({})),
                (10, 250.0, counter()),
                (20, 5.0, wraps_at(256)),
                (20, 5.0, json!({})),
            ],
            61.0,
        ),
        (
            "width",
            vec![
                (0, 200.0, json!({})),
                (10, 250.0, counter()),
                (20, 5.0, wraps_at(256)),
                (20, 5.0, wraps_at(1000)),
            ],
            55.0,
        ),
        (
            "unit",
            vec![
                (0, 10.0, meter("kWh")),
                (10, 20.0, meter("kWh")),
                (10, 20.0, counter()),
                (20, 30.0, meter("kWh")),
            ],
            20.0,
        ),
        (
            "start",
            vec![
                (0, 100.0, json!({"counter": {"start": begin(-100)}})),
                (10, 120.0, json!({"counter": {"start": begin(5)}})),
                (10, 120.0, counter()),
            ],
            120.0,
        ),
        ("new", vec![(0, 0.0, counter()), (7, 30.0, counter()), (14, 31.0, counter())], 31.0),
    ];
    let replaced: [(&str, Vec<Sent>, f64); 2] = [
        (
            "other",
            vec![
                (0, 200.0, json!({})),
                (10, 250.0, counter()),
                (20, 5.0, wraps_at(256)),
                (20, 6.0, json!({})),
            ],
            62.0,
        ),
        (
            "units",
            vec![
                (0, 10.0, meter("kWh")),
                (10, 20.0, meter("kWh")),
                (10, 21.0, meter("kWh")),
                (10, 21.0, counter()),
            ],
            11.0,
        ),
    ];
    for (on_conflict, histories) in
        [("dead", both.to_vec()), ("replace", [&both[..], &replaced[..]].concat())]
    {
        let env = TestEnv::new().await?;
        let database = Postgres::shared().await?.database().await?;
        let rules = env.folder().join("rules.toml");
        std::fs::write(
            &rules,
            "[[rule]]\nname = \"much\"\nmetric = \"new\"\nmore_than = 20\nin = \"30m\"\n",
        )?;
        let worker = env
            .worker("storing")?
            .option("--sink", "postgres")
            .option("--postgres-url", database.url())
            .env("GARENNE_ON_CONFLICT", on_conflict)
            .env("GARENNE_RULES", rules.display().to_string())
            .start()
            .await?;
        let (first, mut published) = (Version::next(), 0);
        for place in 0..4 {
            for (metric, sent, _) in &histories {
                let numbers: Vec<_> = (0..sent.len()).collect();
                for (device, order) in orders(&numbers).iter().enumerate() {
                    let Some(number) = order.get(place) else { continue };
                    let (minute, value, more) = &sent[*number];
                    let mut body = reading(&format!("order-{device}"), metric, *minute, *value);
                    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                    let id = TaskId::parse(&format!("{metric} {device} {number}"))?;
                    let kind = Kind::parse("reading.process")?;
                    let mut task =
                        NewTask::with_id(id, kind, ContentType::Json, body.to_string().into_bytes());
                    task.version = first.plus(*number);
                    let properties = task.properties(SystemTime::now());
                    env.client().publish("garenne.tasks", "reading.process", properties, &task.body).await?;
                    published += 1;
                }
            }
            // Each is stored before the next one of its series is sent.
            until_acked(&worker, published).await?;
        }
        for (metric, sent, expected) in &histories {
            let numbers: Vec<_> = (0..sent.len()).collect();
            for (device, order) in orders(&numbers).iter().enumerate() {
                let found = hours(&database, &format!("order-{device}"), metric).await?;
                let found: Vec<_> =
                    found.into_iter().filter(|(_, consumption)| *consumption != 0.0).collect();
                assert_eq!(found, [(0, *expected)], "{on_conflict}, {metric}: {order:?}");
            }
        }
        let alarms = "SELECT count(*) FROM garenne_alarms WHERE withdrawn_at IS NULL AND closed_at IS NULL";
        assert_eq!(database.text(alarms).await?, "6", "an alarm in each order");
        worker.stop().await?;
    }
    Ok(())
}
