//! The alarms are those of judging all stored readings in order of time, whatever the order of arrival.

use std::collections::BTreeMap;

use anyhow::Result;
use garenne_alarms::alarm::{Excursion, Point, Rules, Sample, find_excursions};
use garenne_protocol::sensor::Unit;
use garenne_tests::harness::{
    client::with_id,
    postgres::{Database, Postgres},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    webhook::Webhook,
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::json;

use super::alarms::{reading, rules, watching};

/// The time of the first reading in seconds.
const BEGIN: i64 = 1_790_000_000;

/// Publishes one task with readings of a device, given as seconds and values.
pub(super) async fn readings(env: &TestEnv, id: &str, device: &str, readings: &[(i64, f64)]) -> Result<()> {
    let reading = |(second, value): &(i64, f64)| json!({"device": device, "metric": "temperature", "unit": "Cel", "value": value, "time": BEGIN + second});
    let body = serde_json::to_string(&readings.iter().map(reading).collect::<Vec<_>>())?;
    env.client().publish("garenne.tasks", "reading.process", with_id(id), body.as_bytes()).await
}

/// The alarms of each device and rule that judges values, in order of time, without withdrawn ones.
pub(super) async fn stored_alarms(database: &Database) -> Result<BTreeMap<(String, String), Vec<Excursion>>> {
    let micros = |name: &str| format!("(extract(epoch FROM {name}) * 1000000)::int8");
    let query = format!(
        "SELECT device, rule, {}, {}, {}, value FROM garenne_alarms
         WHERE withdrawn_at IS NULL AND value IS NOT NULL ORDER BY since",
        micros("since"),
        micros("upto"),
        micros("ended")
    );
    let mut alarms: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for row in database.connect().await?.query(&query, &[]).await? {
        let excursion =
            Excursion { since: row.get(2), upto: row.get(3), ended: row.get(4), value: row.get(5) };
        alarms.entry((row.get(0), row.get(1))).or_default().push(excursion);
    }
    Ok(alarms)
}

/// The alarms that result from judging all stored readings in order of time.
pub(super) async fn judged_in_order(
    database: &Database,
    rules: &Rules,
) -> Result<BTreeMap<(String, String), Vec<Excursion>>> {
    let query = "SELECT device, (extract(epoch FROM time) * 1000000)::int8, value, unit FROM garenne_readings
                 WHERE metric = 'temperature' AND NOT quality && '{impossible}' ORDER BY device, time";
    let mut stored: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
    for row in database.connect().await?.query(query, &[]).await? {
        let unit = Unit::parse(row.get(3)).ok();
        stored.entry(row.get(0)).or_default().push(Sample {
            at: row.get(1),
            value: row.get(2),
            unit,
            start: None,
            zero: None,
        });
    }
    let mut alarms = BTreeMap::new();
    for (device, samples) in stored {
        for rule in rules.matching(&device, "temperature") {
            let points: Vec<Point> = samples.iter().filter_map(|sample| rule.convert(sample)).collect();
            let found = find_excursions(&rule.condition, None, &points);
            if !found.is_empty() {
                alarms.insert((device.clone(), rule.name.clone()), found);
            }
        }
    }
    Ok(alarms)
}

const EXAMPLE: [(i64, f64); 6] = [(10, 60.0), (20, 60.0), (30, 10.0), (40, 10.0), (50, 61.0), (60, 20.0)];

/// The alarms of [`EXAMPLE`].
fn two_alarms() -> [Excursion; 2] {
    let at = |second: i64| (BEGIN + second) * 1_000_000;
    [
        Excursion { since: at(10), upto: at(20), ended: Some(at(30)), value: 60.0 },
        Excursion { since: at(50), upto: at(50), ended: Some(at(60)), value: 61.0 },
    ]
}

#[tokio::test]
async fn late_readings_give_the_alarms_of_the_order_of_time() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "above = 50")?;
    let first = watching(&env, "first", &database, &hook)?.start().await?;
    let second = watching(&env, "second", &database, &hook)?.start().await?;
    let orders =
        [[0, 1, 2, 3, 4, 5], [0, 1, 4, 5, 2, 3], [5, 4, 3, 2, 1, 0], [2, 5, 0, 4, 1, 3], [4, 0, 5, 3, 1, 2]];
    for (device, order) in orders.iter().enumerate() {
        for place in order {
            let id = format!("{device}-{place}");
            readings(&env, &id, &format!("d{device}"), &[EXAMPLE[*place]]).await?;
        }
    }
    env.until_settled(30).await?;
    let alarms = stored_alarms(&database).await?;
    assert_eq!(alarms.len(), orders.len());
    for alarms in alarms.values() {
        assert_eq!(*alarms, two_alarms());
    }
    for worker in [first, second] {
        assert_eq!(worker.stop().await?.receipt.dead, 0);
    }
    Ok(())
}

#[tokio::test]
async fn replaced_readings_give_the_alarms_of_the_order_of_time() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "above = 50")?;
    let plan = |name| {
        Ok::<_, anyhow::Error>(watching(&env, name, &database, &hook)?.env("GARENNE_ON_CONFLICT", "replace"))
    };
    let first = plan("first")?.start().await?;
    let second = plan("second")?.start().await?;
    // One alarm, none, and another one.
    let earlier = [61.0, 10.0, 55.0];
    for (device, value) in earlier.into_iter().enumerate() {
        let values =
            EXAMPLE.map(|(second, _)| (second, if device == 2 { value + second as f64 } else { value }));
        for (place, value) in values.into_iter().enumerate() {
            readings(&env, &format!("{device}-{place}"), &format!("d{device}"), &[value]).await?;
        }
    }
    env.until_settled(18).await?;
    assert_eq!(stored_alarms(&database).await?.len(), 2);
    for device in 0..earlier.len() {
        for place in [4, 0, 5, 3, 1, 2] {
            readings(&env, &format!("new-{device}-{place}"), &format!("d{device}"), &[EXAMPLE[place]])
                .await?;
        }
    }
    env.until_settled(36).await?;
    let alarms = stored_alarms(&database).await?;
    assert_eq!(alarms.len(), earlier.len());
    for alarms in alarms.values() {
        assert_eq!(*alarms, two_alarms());
    }
    // Impossible values remove the readings from judgement, and with them the open alarm.
    readings(&env, "open", "d9", &[(10, 60.0), (20, 61.0)]).await?;
    env.until_settled(37).await?;
    readings(&env, "removed", "d9", &[(10, -400.0), (20, -400.0)]).await?;
    env.until_settled(38).await?;
    assert!(!stored_alarms(&database).await?.contains_key(&("d9".into(), "r".into())));
    let ids = "SELECT id FROM garenne_alarms WHERE device = 'd9' AND withdrawn_at IS NOT NULL";
    let id: String = database.connect().await?.query_one(ids, &[]).await?.get(0);
    let notices = "SELECT payload #>> '{data,state}' FROM garenne_notices WHERE payload #>> '{data,alarm}' = $1 ORDER BY 1";
    let notices = database.connect().await?.query(notices, &[&id]).await?;
    let states: Vec<String> = notices.iter().map(|row| row.get(0)).collect();
    assert_eq!(states, ["cleared", "raised"]);
    for worker in [first, second] {
        assert_eq!(worker.stop().await?.receipt.dead, 0);
    }
    Ok(())
}

#[tokio::test]
async fn shuffled_readings_of_two_workers_give_the_alarms_of_the_order_of_time() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    let more = [
        "below = 19\nclear = 21",
        "faster_than = 9\nper = \"20s\"",
        "stuck_for = \"4s\"",
        "more_than = 30\nin = \"10s\"",
    ];
    let mut text = "above = 23\nclear = 21".to_owned();
    for (name, rule) in (0..).zip(more) {
        text += &format!("\n[[rule]]\nname = \"r{name}\"\nmetric = \"temperature\"\nunit = \"Cel\"\n{rule}");
    }
    let file = rules(&env, &text)?;
    let plan = |name| {
        Ok::<_, anyhow::Error>(watching(&env, name, &database, &hook)?.env("GARENNE_ON_CONFLICT", "replace"))
    };
    let first = plan("first")?.start().await?;
    let second = plan("second")?.start().await?;
    let mut random = StdRng::seed_from_u64(suite::seed(17)?);
    let mut tasks = Vec::new();
    for device in ["d1", "d2"] {
        // Steps, so that values are equal for a while, and some values that come twice, differently.
        let mut all: Vec<(i64, f64)> = Vec::new();
        let mut value: f64 = 20.0;
        for second in 0..600 {
            if random.random_ratio(1, 4) {
                value = (value + f64::from(random.random_range(-3_i32..=3))).clamp(15.0, 27.0);
            }
            all.push((second, if random.random_ratio(1, 30) { -300.0 } else { value }));
            if random.random_ratio(1, 10) {
                all.push((second, 22.0));
            }
        }
        all.shuffle(&mut random);
        tasks.extend(all.chunks(5).map(|chunk| (device, chunk.to_vec())));
    }
    tasks.shuffle(&mut random);
    for (number, (device, chunk)) in tasks.iter().enumerate() {
        readings(&env, &format!("t{number}"), device, chunk).await?;
    }
    env.until_settled(tasks.len()).await?;
    let expected = judged_in_order(&database, &Rules::load(&file).map_err(anyhow::Error::msg)?).await?;
    assert_eq!(expected.len(), 10, "each rule has alarms: {:?}", expected.keys());
    assert_eq!(stored_alarms(&database).await?, expected);
    let twice =
        "SELECT count(*) FROM garenne_notices GROUP BY payload #>> '{data,alarm}', payload #>> '{data,state}'
                 HAVING count(*) > 1";
    assert!(database.connect().await?.query(twice, &[]).await?.is_empty());
    let unreported = "SELECT id FROM garenne_alarms AS a WHERE NOT EXISTS (
                          SELECT FROM garenne_notices WHERE payload #>> '{data,alarm}' = a.id
                          AND payload #>> '{data,state}' = 'raised')";
    assert!(database.connect().await?.query(unreported, &[]).await?.is_empty());
    for worker in [first, second] {
        assert_eq!(worker.stop().await?.receipt.dead, 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_spike_within_many_stored_readings_raises_an_alarm() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "above = 50")?;
    let worker = watching(&env, "judging", &database, &hook)?.start().await?;
    let history = format!(
        "INSERT INTO garenne_readings (device, metric, time, value, unit, raw, quality, task_id, worker)
         SELECT 'd1', 'temperature', to_timestamp({BEGIN} + 2 * n), 20 + n % 5, 'Cel', 20 + n % 5, '{{}}', 'h', 'h'
         FROM generate_series(0, 50000) AS n"
    );
    database.connect().await?.execute(&history, &[]).await?;
    readings(&env, "spike", "d1", &[(1, 20.0), (50_001, 60.0), (99_999, 20.0)]).await?;
    env.until_settled(1).await?;
    let at = |second: i64| (BEGIN + second) * 1_000_000;
    let spike = Excursion { since: at(50_001), upto: at(50_001), ended: Some(at(50_002)), value: 60.0 };
    assert_eq!(stored_alarms(&database).await?.into_values().collect::<Vec<_>>(), [[spike]]);
    hook.until_alerts(1).await?;
    assert_eq!(worker.stop().await?.receipt.dead, 0);
    Ok(())
}

#[tokio::test]
async fn the_other_readings_of_a_task_with_a_conflict_are_judged() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "above = 50")?;
    let worker = watching(&env, "judging", &database, &hook)?.start().await?;
    reading(&env, "good", 10, 20.0, "Cel").await?;
    env.until_settled(1).await?;
    readings(&env, "conflicting", "d1", &[(10, 21.0), (20, 60.0)]).await?;
    hook.until_alerts(1).await?;
    env.until_settled(2).await?;
    let at = (BEGIN + 20) * 1_000_000;
    let hot = Excursion { since: at, upto: at, ended: None, value: 60.0 };
    assert_eq!(stored_alarms(&database).await?.into_values().collect::<Vec<_>>(), [[hot]]);
    assert_eq!(worker.stop().await?.receipt.dead, 1);
    Ok(())
}

/// A later notice of an alarm leaves after the task of the one before is done or dead, with two workers and a receiver that
/// refuses one and then fails for a while.
#[tokio::test]
async fn notices_of_an_alarm_leave_one_after_another() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([(400, ""), (503, ""), (503, "")]).await?;
    rules(&env, "above = 50")?;
    let plan = |name| anyhow::Ok(watching(&env, name, &database, &hook)?.env("GARENNE_ALERT__RETRIES", "0"));
    let first = plan("first")?.start().await?;
    let second = plan("second")?.start().await?;
    readings(&env, "dead", "dead", &[(10, 60.0)]).await?;
    assert_eq!(env.take_all("garenne.dead", 1).await?.len(), 1);
    let devices = ["dead", "d1", "d2", "d3"];
    for device in devices {
        readings(&env, &format!("on-{device}"), device, &[(20, 61.0)]).await?;
    }
    eventually("the alarms are open", async || {
        let open = stored_alarms(&database).await?.len();
        Ok(Seen::when(open == devices.len(), open))
    })
    .await?;
    for device in devices {
        readings(&env, &format!("off-{device}"), device, &[(30, 10.0)]).await?;
    }
    let mut received: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for alert in hook.until_alerts(7).await? {
        let data = &alert["data"];
        let told = format!("{} {}", data["state"].as_str().unwrap_or_default(), data["sequence"]);
        received.entry(data["alarm"].to_string()).or_default().push(told);
    }
    let mut received: Vec<_> = received.into_values().collect();
    received.sort();
    let both = vec!["raised 1".to_owned(), "cleared 2".to_owned()];
    assert_eq!(received, [vec!["cleared 2".to_owned()], both.clone(), both.clone(), both]);
    let ended = "garenne_notices JOIN garenne_notice_attempts USING (id) WHERE has_ended";
    database.until_count(ended, 8).await?;
    for worker in [first, second] {
        worker.stop().await?;
    }
    Ok(())
}

/// The next notice of an alarm follows soon if the one before was delivered by a worker without the sink, which tells it.
#[tokio::test]
async fn a_worker_without_the_sink_tells_that_a_notice_was_delivered() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "above = 50")?;
    let storing = watching(&env, "storing", &database, &hook)?.option("--lane", "fast").start().await?;
    let alerting = env.worker("alerting")?.stdout().option("--lane", "slow");
    let alerting = alerting.env("GARENNE_ALERT__WEBHOOKS__DEFAULT__URL", hook.url()).start().await?;
    readings(&env, "on", "d1", &[(10, 60.0)]).await?;
    hook.until_alerts(1).await?;
    readings(&env, "off", "d1", &[(20, 10.0)]).await?;
    let states: Vec<_> = hook.until_alerts(2).await?.iter().map(|it| it["data"]["state"].clone()).collect();
    assert_eq!(states, ["raised", "cleared"]);
    for worker in [storing, alerting] {
        assert_eq!(worker.stop().await?.receipt.dead, 0);
    }
    Ok(())
}

/// The same if the receiver refused it, and the notice is a dead letter.
#[tokio::test]
async fn a_worker_without_the_sink_tells_that_a_notice_is_dead() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([(400, "")]).await?;
    rules(&env, "above = 50")?;
    let storing = watching(&env, "storing", &database, &hook)?.option("--lane", "fast").start().await?;
    let alerting = env.worker("alerting")?.stdout().option("--lane", "slow");
    let alerting = alerting.env("GARENNE_ALERT__WEBHOOKS__DEFAULT__URL", hook.url()).start().await?;
    readings(&env, "on", "d1", &[(10, 60.0)]).await?;
    env.until_ready_in("garenne.dead", 1).await?;
    readings(&env, "off", "d1", &[(20, 10.0)]).await?;
    let states: Vec<_> = hook.until_alerts(1).await?.iter().map(|it| it["data"]["state"].clone()).collect();
    assert_eq!(states, ["cleared"]);
    assert_eq!((storing.stop().await?.receipt.dead, alerting.stop().await?.receipt.dead), (0, 1));
    Ok(())
}

/// A notice in a paused lane is on its way for as long as the pause lasts. One that was purged is waited for `notice_wait`.
#[tokio::test]
async fn a_notice_in_a_paused_lane_holds_the_next_one_and_one_that_was_purged_does_not() -> Result<()> {
    const QUEUE: &str = "garenne.tasks.slow";
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let hook = Webhook::start([]).await?;
    rules(&env, "above = 50")?;
    let plan = watching(&env, "watching", &database, &hook)?.env("GARENNE_ALERT__NOTICE_WAIT", "1s");
    let worker = plan.start().await?;
    let lane = async |verb| env.garenne(&["lane", verb, "slow"]).await;
    let states = async |alerts| {
        let alerts = hook.until_alerts(alerts).await?;
        anyhow::Ok(alerts.iter().map(|it| it["data"]["state"].to_string()).collect::<Vec<_>>().join(" "))
    };
    for (device, is_purged) in [("kept", false), ("purged", true)] {
        lane("pause").await?;
        readings(&env, &format!("on-{device}"), device, &[(10, 60.0)]).await?;
        env.until_ready_in(QUEUE, 1).await?;
        readings(&env, &format!("off-{device}"), device, &[(20, 10.0)]).await?;
        let held = format!(
            "SELECT string_agg(coalesce((now() - published_at > interval '4 s')::text, 'held'), ' ' ORDER BY sequence)
             FROM garenne_notices WHERE payload #>> '{{data,device}}' = '{device}'"
        );
        eventually("the next notice is held for longer than notice_wait", async || {
            let held = database.text(&held).await?;
            Ok(Seen::when(held == "true held", held))
        })
        .await?;
        if is_purged {
            env.garenne(&["queue", "purge", QUEUE, "--yes"]).await?;
        }
        lane("resume").await?;
        match is_purged {
            false => assert_eq!(states(2).await?, r#""raised" "cleared""#),
            true => assert_eq!(states(3).await?, r#""raised" "cleared" "cleared""#),
        }
    }
    assert_eq!(worker.stop().await?.receipt.dead, 0);
    Ok(())
}
