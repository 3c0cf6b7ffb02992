//! The database is away again and again, at random moments and in both ways: it refuses connections, or it hangs with
//! them open. No reading, no alarm and no watch for silence is lost, and each alert arrives once.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use anyhow::Result;
use garenne_alarms::alarm::Rules;
use garenne_tests::harness::{
    postgres::{Database, Postgres},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    webhook::Webhook,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;
use tokio::{
    time::{Interval, interval},
    try_join,
};

use super::{
    alarm_order::{judged_in_order, readings, stored_alarms},
    alarms::{rules, watching},
};

/// Time between two readings of a device, on the test's clock. On that of the sensors it is a second.
const TICK: Duration = Duration::from_millis(250);

/// Each device has these: a limit, a limit for some time, and silence.
const RULES: &str = "above = 30\nclear = 25\n
    [[rule]]\nname = \"held\"\nmetric = \"temperature\"\nunit = \"Cel\"\nabove = 27\nfor = \"6s\"\n
    [[rule]]\nname = \"quiet\"\nmetric = \"temperature\"\nsilent_for = \"6s\"";

/// How long the outages go on, in ticks.
struct OutageLoad {
    total: u32,
    outage: RangeInclusive<f64>,
    pause: RangeInclusive<u32>,
}

/// For each build: some six outages of 1 to 6 s.
const SHORT: OutageLoad = OutageLoad { total: 130, outage: 4.0..=24.0, pause: 4..=16 };

/// For `./dev test --full`: outages of 1 s to 10 min in 45 minutes, so that statements reach their time limits, too.
const LONG: OutageLoad = OutageLoad { total: 10_800, outage: 4.0..=2_400.0, pause: 20..=240 };

/// A way in which the database is away.
#[derive(Clone, Copy, Debug)]
enum Away {
    /// It was killed: connections end, and new ones are refused.
    Refusing,
    /// It is frozen: connections stay open, and nothing answers.
    Hanging,
}

/// A time in which the database is away, in ticks.
#[derive(Clone, Debug)]
struct Outage {
    away: Away,
    begin: u32,
    end: u32,
}

/// Outages with pauses between them. Short ones are as likely as long ones, on a logarithmic scale.
fn outages(load: &OutageLoad, random: &mut StdRng) -> Vec<Outage> {
    let mut outages = Vec::new();
    let mut begin = random.random_range(load.pause.clone());
    while begin < load.total {
        let (shortest, longest) = (load.outage.start().ln(), load.outage.end().ln());
        let ticks = random.random_range(shortest..=longest).exp().round() as u32;
        let away = if outages.len() % 2 == 0 { Away::Refusing } else { Away::Hanging };
        outages.push(Outage { away, begin, end: begin + ticks });
        begin += ticks + random.random_range(load.pause.clone());
    }
    outages
}

/// A device with a random walk around the limits, whose readings sometimes arrive in another order.
struct Device {
    name: String,
    value: f64,
    second: i64,
    delayed: Option<(i64, f64)>,
    /// The tick after which it sends nothing.
    stops: u32,
}

impl Device {
    /// The readings that it sends now.
    fn next(&mut self, random: &mut StdRng) -> Vec<(i64, f64)> {
        self.second += 1;
        self.value = (self.value + f64::from(random.random_range(-3_i32..=3))).clamp(18.0, 34.0);
        let reading = (self.second, self.value);
        if self.delayed.is_none() && random.random_ratio(1, 10) {
            self.delayed = Some(reading);
            return Vec::new();
        }
        let delayed = self.delayed.take();
        [reading].into_iter().chain(delayed).collect()
    }
}

/// A sender of readings, and their destination.
struct Site {
    env: TestEnv,
    database: Database,
    hook: Webhook,
    devices: Vec<Device>,
    random: StdRng,
    pace: Interval,
    tick: u32,
    sent: usize,
}

impl Site {
    /// Four devices that send all the time, and two that stop at random moments.
    async fn new(server: &Postgres, load: &OutageLoad, mut random: StdRng) -> Result<Self> {
        let stops = |place: usize, random: &mut StdRng| {
            if place < 4 { u32::MAX } else { random.random_range(10..load.total) }
        };
        let devices = (0..6).map(|place| Device {
            name: format!("d{place}"),
            value: 25.0,
            second: 0,
            delayed: None,
            stops: stops(place, &mut random),
        });
        let devices = devices.collect();
        let (env, database, hook) =
            (TestEnv::new().await?, server.database().await?, Webhook::start([]).await?);
        Ok(Self { env, database, hook, devices, random, pace: interval(TICK), tick: 0, sent: 0 })
    }

    /// Waits for the next tick, and sends what is due.
    async fn tick(&mut self) -> Result<()> {
        self.pace.tick().await;
        self.tick += 1;
        for device in self.devices.iter_mut().filter(|device| self.tick <= device.stops) {
            let due = device.next(&mut self.random);
            if !due.is_empty() {
                readings(&self.env, &format!("{}-{}", device.name, device.second), &device.name, &due)
                    .await?;
                self.sent += due.len();
            }
        }
        Ok(())
    }

    /// Ticks until a change of the database has been made, which takes a while on a busy machine.
    async fn tick_during(&mut self, change: impl Future<Output = Result<()>>) -> Result<()> {
        let is_made = Cell::new(false);
        let change = async {
            change.await?;
            is_made.set(true);
            Ok(())
        };
        let ticks = async {
            while !is_made.get() {
                self.tick().await?;
            }
            Ok(())
        };
        try_join!(change, ticks).map(drop)
    }

    /// Sends one reading of each device.
    async fn send_once(&mut self) -> Result<()> {
        for device in &mut self.devices {
            device.second += 1;
            let reading = [(device.second, 20.0)];
            readings(&self.env, &format!("{}-{}", device.name, device.second), &device.name, &reading)
                .await?;
            self.sent += 1;
        }
        Ok(())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().map(|device| device.name.as_str())
    }

    /// For each device that was ever silent, how often it was, and how often it still is.
    async fn silences(&self) -> Result<BTreeMap<String, (i64, i64)>> {
        let query = "SELECT device, count(*), count(*) FILTER (WHERE ended IS NULL) FROM garenne_alarms
                     WHERE rule = 'quiet' AND withdrawn_at IS NULL GROUP BY device";
        let rows = self.database.connect().await?.query(query, &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect())
    }

    /// Waits until each device was silent so often, and is.
    async fn until_all_silent(&self, times: i64) -> Result<()> {
        let wanted: BTreeMap<_, _> = self.names().map(|name| (name.to_owned(), (times, 1))).collect();
        // Readings that were sent during an outage are stored first, which takes minutes after a long one.
        eventually(format!("each device is silent, {times} times"), async || {
            let (found, stored) = (self.silences().await?, self.database.count("garenne_readings").await?);
            Ok(Seen::when(found == wanted, format_args!("{found:?}, {stored} of {} readings", self.sent)))
        })
        .await
    }

    /// How often each alarm's state was stored as a notice, and how often it arrived.
    async fn notices(
        &self,
    ) -> Result<(BTreeMap<(String, String), usize>, BTreeMap<(String, String), usize>)> {
        let query = "SELECT payload #>> '{data,alarm}', payload #>> '{data,state}' FROM garenne_notices";
        let (mut stored, mut arrived) = (BTreeMap::new(), BTreeMap::new());
        for row in self.database.connect().await?.query(query, &[]).await? {
            *stored.entry((row.get(0), row.get(1))).or_default() += 1;
        }
        for alert in self.hook.alerts() {
            let text = |name: &str| alert["data"][name].as_str().unwrap_or_default().to_owned();
            *arrived.entry((text("alarm"), text("state"))).or_default() += 1;
        }
        Ok((stored, arrived))
    }

    /// Checks that each alarm was told once when it was raised, and once when it was over, and that each notice
    /// arrived once.
    async fn check_alerts(&self) -> Result<()> {
        self.database.until_count("garenne_notices WHERE published_at IS NULL", 0).await?;
        eventually("every alert arrives", async || {
            let (stored, arrived) = self.notices().await?;
            let missing: Vec<_> = stored.keys().filter(|notice| !arrived.contains_key(*notice)).collect();
            Ok(Seen::when(missing.is_empty(), format_args!("{missing:?}")))
        })
        .await?;
        self.env.until_lane("slow", 0, 0).await?;
        let (stored, arrived) = self.notices().await?;
        assert!(stored.values().all(|count| *count == 1), "stored twice: {stored:?}");
        let doubled: Vec<_> = arrived.iter().filter(|(_, count)| **count > 1).collect();
        assert!(doubled.is_empty(), "arrived twice: {doubled:?}");
        assert_eq!(stored, arrived);
        let query = "SELECT id, ended IS NOT NULL OR withdrawn_at IS NOT NULL FROM garenne_alarms";
        // An alarm that was over when it was raised is told once.
        let was_over =
            |alert: &Value| alert["data"]["state"] == "raised" && alert["data"]["ended"].is_string();
        let over: Vec<_> = self.hook.alerts().into_iter().filter(was_over).collect();
        let over: BTreeSet<_> = over.iter().filter_map(|alert| alert["data"]["alarm"].as_str()).collect();
        let mut expected = BTreeMap::new();
        for row in self.database.connect().await?.query(query, &[]).await? {
            let (id, is_over): (String, bool) = (row.get(0), row.get(1));
            if is_over && !over.contains(id.as_str()) {
                expected.insert((id.clone(), "cleared".to_owned()), 1);
            }
            expected.insert((id, "raised".to_owned()), 1);
        }
        assert_eq!(arrived, expected);
        Ok(())
    }
}

#[tokio::test]
async fn outages_of_the_database_lose_and_double_no_alert() -> Result<()> {
    let load = if suite::is_full() { LONG } else { SHORT };
    let mut random = StdRng::seed_from_u64(suite::seed(23)?);
    let outages = outages(&load, &mut random);
    eprintln!("outages: {outages:?}");
    let server = Postgres::start().await?;
    let mut site = Site::new(&server, &load, random).await?;
    let file = rules(&site.env, RULES)?;
    let first = watching(&site.env, "first", &site.database, &site.hook)?.start().await?;
    let second = watching(&site.env, "second", &site.database, &site.hook)?.start().await?;
    for outage in &outages {
        while site.tick < outage.begin {
            site.tick().await?;
        }
        let away = async || match outage.away {
            Away::Refusing => server.kill().await,
            Away::Hanging => server.pause().await,
        };
        site.tick_during(away()).await?;
        while site.tick < outage.end {
            site.tick().await?;
        }
        let back = async || match outage.away {
            Away::Refusing => server.restart().await,
            Away::Hanging => server.unpause().await,
        };
        site.tick_during(back()).await?;
    }
    while site.tick < load.total {
        site.tick().await?;
    }

    // Only the devices that have stopped are silent.
    let stopped = site.devices.iter().filter(|device| device.stops < load.total);
    let stopped: BTreeMap<_, _> = stopped.map(|device| (device.name.clone(), (1, 1))).collect();
    assert_eq!(stopped.len(), 2, "{outages:?}");
    eventually("the devices that have stopped are silent", async || {
        site.tick().await?;
        let (silent, stored) = (site.silences().await?, site.database.count("garenne_readings").await?);
        let seen = format!("{silent:?}, {stored} of {} readings", site.sent);
        if silent == stopped { Ok(Seen::Wanted(())) } else { Ok(Seen::Other(seen)) }
    })
    .await?;
    // Every device is watched: it is found silent, is heard again, and is found silent again.
    site.until_all_silent(1).await?;
    site.send_once().await?;
    site.until_all_silent(2).await?;

    let delayed = site.devices.iter().filter(|device| device.delayed.is_some()).count();
    eprintln!("{} readings, {delayed} never sent", site.sent);
    site.database.until_count("garenne_readings", site.sent as i64).await?;
    let expected = judged_in_order(&site.database, &Rules::load(&file).map_err(anyhow::Error::msg)?).await?;
    let rules: BTreeSet<_> = expected.keys().map(|(_, rule)| rule.as_str()).collect();
    assert_eq!(rules.into_iter().collect::<Vec<_>>(), ["held", "r"], "each rule has alarms");
    assert_eq!(stored_alarms(&site.database).await?, expected);
    site.check_alerts().await?;
    for worker in [first, second] {
        assert_eq!(worker.stop().await?.receipt.dead, 0);
    }
    Ok(())
}
