//! When an alarm is raised and over besides crossing a limit: hold times, removed rules, devices that never sent, and
//! recalibrated readings. Each notice is sent once, with several workers.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result};
use garenne_alarms::alarm::Rules;
use garenne_tests::harness::{
    postgres::{Database, Postgres},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    webhook::Webhook,
    worker::Worker,
};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::{Value, json};
use tokio_postgres::Client;

use super::{
    alarm_order::{judged_in_order, readings, stored_alarms},
    alarms::{publish_reading, rules, watching},
};

/// A broker, a database and a receiver of alerts.
pub(super) struct Site {
    pub(super) env: TestEnv,
    pub(super) database: Database,
    pub(super) client: Client,
    pub(super) hook: Webhook,
}

impl Site {
    pub(super) async fn new() -> Result<Self> {
        let env = TestEnv::new().await?;
        let database = Postgres::shared().await?.database().await?;
        let (client, hook) = (database.connect().await?, Webhook::start([]).await?);
        Ok(Self { env, database, client, hook })
    }

    pub(super) async fn worker(&self, name: &str) -> Result<Worker> {
        watching(&self.env, name, &self.database, &self.hook)?.start().await
    }

    /// Starts two workers with a rule.
    pub(super) async fn workers(&self, rule: &str) -> Result<[Worker; 2]> {
        rules(&self.env, rule)?;
        Ok([self.worker("first").await?, self.worker("second").await?])
    }

    /// Publishes a reading of a device, at this second.
    pub(super) async fn reading(&self, device: &str, second: i64, value: f64) -> Result<()> {
        let fields = json!({"device": device, "value": value, "time": 1_790_000_000 + second});
        publish_reading(&self.env, &format!("{device}-{second}"), fields).await
    }

    /// Runs `garenne alarms …`. Returns its lines.
    pub(super) async fn alarms(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let url = self.database.url();
        let arguments = [&["alarms", "--postgres-url", &url][..], arguments].concat();
        let ended = self.env.garenne(&arguments).await?;
        anyhow::ensure!(ended.code == Some(0), "{arguments:?}: {:?}", ended.stderr);
        Ok(ended.stdout)
    }

    /// The alarms that `garenne alarms list` lists.
    pub(super) async fn listed(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let lines = self.alarms(&[&["list", "--json"], arguments].concat()).await?;
        lines.iter().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// The id of a device's open alarm.
    pub(super) async fn open_alarm(&self, device: &str) -> Result<String> {
        let listed = self.listed(&["--open", "--device", device]).await?;
        let id = listed.first().with_context(|| format!("no alarm of {device}"))?["id"].as_str();
        Ok(id.context("an id")?.to_owned())
    }

    /// Waits until the alarms were checked several times more.
    pub(super) async fn until_checked_again(&self) -> Result<()> {
        let checked =
            "SELECT extract(epoch FROM checked_at)::float8 FROM garenne_monitor WHERE name = 'alarms'";
        let begin: f64 = self.client.query_one(checked, &[]).await?.get(0);
        eventually("further checks", async || {
            let now: f64 = self.client.query_one(checked, &[]).await?.get(0);
            Ok(Seen::when(now >= begin + 5.0, now - begin))
        })
        .await
    }

    /// State and reason of the stored notices of a device, in order.
    pub(super) async fn notices(&self, device: &str) -> Result<Vec<String>> {
        let query = "SELECT concat_ws(' ', payload #>> '{data,state}', payload #>> '{data,reason}') FROM garenne_notices
                     WHERE payload #>> '{data,device}' = $1 ORDER BY at, payload #>> '{data,state}' DESC";
        Ok(self.client.query(query, &[&device]).await?.iter().map(|row| row.get(0)).collect())
    }

    pub(super) async fn until_notices(&self, device: &str, wanted: &[&str]) -> Result<()> {
        eventually(format!("the notices {wanted:?}"), async || {
            let found = self.notices(device).await?;
            Ok(Seen::when(found == wanted, format_args!("{found:?}")))
        })
        .await
    }

    /// Checks that the receiver got every notice once, and stops the workers.
    pub(super) async fn end(&self, workers: impl IntoIterator<Item = Worker>) -> Result<()> {
        self.end_after_a_kill(workers).await?;
        assert_eq!(
            self.hook.alerts().len() as i64,
            self.database.count("garenne_notices").await?,
            "an alert was sent twice"
        );
        Ok(())
    }

    /// As [`end`](Self::end), where the same alert may come twice: its worker was killed before the ack.
    pub(super) async fn end_after_a_kill(&self, workers: impl IntoIterator<Item = Worker>) -> Result<()> {
        self.database.until_count("garenne_notices WHERE published_at IS NULL", 0).await?;
        let stored = self.database.count("garenne_notices").await?;
        eventually("every alert arrives", async || {
            let ids: BTreeSet<_> = self.hook.alerts().iter().map(|alert| alert["id"].to_string()).collect();
            Ok(Seen::when(ids.len() as i64 == stored, format_args!("{} of {stored}", ids.len())))
        })
        .await?;
        for worker in workers {
            assert_eq!(worker.stop().await?.receipt.dead, 0);
        }
        Ok(())
    }
}

/// The readings of each device arrive in another order, at two workers.
#[tokio::test]
async fn a_hold_time_is_judged_by_the_times_of_readings_in_any_order() -> Result<()> {
    let site = Site::new().await?;
    let workers = site.workers("above = 30\nclear = 25\nfor = \"10s\"\nseverity = \"critical\"").await?;
    // Nine seconds are too short, and so is a time with a value at the limit in it. Then ten seconds.
    let values = [
        (0, 31.0),
        (9, 32.0),
        (12, 30.0),
        (15, 31.0),
        (20, 33.0),
        (25, 34.0),
        (29, 26.0),
        (31, 25.0),
        (40, 31.0),
    ];
    let mut random = StdRng::seed_from_u64(suite::seed(17)?);
    for device in 0..6 {
        let mut order = values;
        if device > 0 {
            order.shuffle(&mut random);
        }
        for (second, value) in order {
            let id = format!("{device}-{second}");
            readings(&site.env, &id, &format!("d{device}"), &[(second, value)]).await?;
        }
    }
    site.database.until_count("garenne_readings", 54).await?;
    site.database.until_count("garenne_results WHERE kind = 'reading.process'", 54).await?;
    let file = Rules::load(&site.env.folder().join("rules.toml")).map_err(anyhow::Error::msg)?;
    let stored = stored_alarms(&site.database).await?;
    assert_eq!(stored, judged_in_order(&site.database, &file).await?);
    let at = |second: i64| (1_790_000_000 + second) * 1_000_000;
    for alarms in stored.values() {
        let found: Vec<_> = alarms.iter().map(|alarm| (alarm.since, alarm.upto, alarm.ended)).collect();
        assert_eq!(found, [(at(25), at(29), Some(at(31)))]);
    }
    assert_eq!(stored.len(), 6);
    site.hook.until_alerts(6).await?;
    let alerts = site.hook.alerts();
    let data = &alerts.first().context("an alert")?["data"];
    assert_eq!((&data["severity"], &data["says"]), (&json!("critical"), &json!("above 30 for 10s")));
    assert_eq!(site.listed(&["--severity", "critical"]).await?.len(), 6);
    assert_eq!(site.listed(&["--severity", "info"]).await?.len(), 0);
    assert_eq!(site.listed(&["--open"]).await?.len(), 0);
    site.end(workers).await
}

/// The state of a rule that waits for hours is in the row of the series: the readings of these hours, which are deleted
/// here, are not read again. Where the state is invalid, the alarm would need them.
#[tokio::test]
async fn a_hold_time_of_hours_needs_only_the_row_of_the_series() -> Result<()> {
    let site = Site::new().await?;
    rules(&site.env, "above = 30\nfor = \"2h\"")?;
    let worker = site.worker("first").await?;
    // A reading each ten seconds, a batch for ten minutes. In order, because a late batch makes the state invalid.
    for batch in 0..11 {
        let values: Vec<_> = (0..60).map(|n| ((batch * 60 + n) * 10, 31.0)).collect();
        for device in ["kept", "lost"] {
            readings(&site.env, &format!("{device}-{batch}"), device, &values).await?;
        }
        site.database.until_count("garenne_readings", (batch + 1) * 120).await?;
    }
    let pending = "garenne_series WHERE pending_at = stored_at AND pending IS NOT NULL";
    site.database.until_count(pending, 2).await?;
    worker.stop().await?;
    site.client
        .batch_execute(
            "DELETE FROM garenne_readings; UPDATE garenne_series SET pending_at = NULL WHERE device = 'lost'",
        )
        .await?;

    // Another worker has the rule's state from the row.
    let worker = site.worker("second").await?;
    let last: Vec<_> = (660..=720).map(|n| (n * 10, 32.0)).collect();
    for device in ["kept", "lost"] {
        readings(&site.env, &format!("{device}-last"), device, &last).await?;
    }
    site.database.until_count("garenne_readings", 2 * 61).await?;
    let stored = stored_alarms(&site.database).await?;
    let found: Vec<_> =
        stored.iter().map(|((device, _), alarms)| (device.as_str(), alarms[0].since)).collect();
    assert_eq!(found, [("kept", (1_790_000_000 + 7_200) * 1_000_000)]);
    site.end([worker]).await
}

/// During a rolling upgrade one worker has the rule and the other has not. Its alarms are closed after the last worker
/// with the rule is gone.
#[tokio::test]
async fn removing_a_rule_closes_its_alarms_with_a_reason() -> Result<()> {
    let site = Site::new().await?;
    let removed = "\n[[rule]]\nname = \"old\"\nmetric = \"temperature\"\nabove = 25\n";
    rules(&site.env, &format!("above = 30\n{removed}"))?;
    let first = site.worker("first").await?;
    site.reading("d", 1, 31.0).await?;
    site.hook.until_alerts(2).await?;
    rules(&site.env, "above = 30")?;
    let second = site.worker("second").await?;
    // As if the fleet had been checking for an hour, and no worker had announced the rules for as long.
    let hour_ago = async || {
        site.client
            .batch_execute(
                "UPDATE garenne_monitor SET since = since - interval '1 hour' WHERE name = 'alarms';
                 UPDATE garenne_rules SET announced_at = announced_at - interval '1 hour' WHERE name = 'old'",
            )
            .await
    };
    let since = "UPDATE garenne_monitor SET since = since - interval '1 hour' WHERE name = 'alarms'";
    site.client.execute(since, &[]).await?;
    site.until_checked_again().await?;
    assert_eq!(
        site.database.count("garenne_alarms WHERE ended IS NULL").await?,
        2,
        "a worker still has the rule"
    );
    assert_eq!(first.stop().await?.receipt.dead, 0);
    hour_ago().await?;
    site.database
        .until_count("garenne_alarms WHERE closed_reason = 'rule-removed' AND closed_at IS NOT NULL", 1)
        .await?;
    site.until_checked_again().await?;
    assert_eq!(site.notices("d").await?, ["raised", "raised", "cleared rule-removed"]);
    let listed = site.listed(&[]).await?;
    let closed: Vec<_> = listed.iter().filter(|alarm| alarm["closed_reason"] == "rule-removed").collect();
    assert_eq!((closed.len(), &closed[0]["rule"]), (1, &json!("old")));
    let open = site.listed(&["--open"]).await?;
    assert_eq!((open.len(), &open[0]["rule"]), (1, &json!("r")));
    // The rule comes back: what violates it then is a new alarm.
    rules(&site.env, &format!("above = 30\n{removed}"))?;
    let third = site.worker("third").await?;
    second.stop().await?;
    site.reading("d", 2, 32.0).await?;
    site.database.until_count("garenne_alarms WHERE rule = 'old' AND ended IS NULL", 1).await?;
    site.end([third]).await
}

#[tokio::test]
async fn an_expected_device_that_never_sent_is_reported() -> Result<()> {
    let site = Site::new().await?;
    let rule = "silent_for = \"2s\"\nexpected = [\"press-1\", \"press-2\", \"boiler-*\", \"pump-*\"]";
    rules(&site.env, rule)?;
    let first = site.worker("first").await?;
    // These have sent, so that they are silent at most.
    site.reading("press-2", 1, 20.0).await?;
    site.reading("pump-7", 1, 20.0).await?;
    site.database.until_count("garenne_readings", 2).await?;
    let workers = [first, site.worker("second").await?];
    for device in ["press-1", "boiler-*"] {
        site.until_notices(device, &["raised never-sent"]).await?;
    }
    let listed = site.listed(&["--open", "--device", "press-1"]).await?;
    assert_eq!(listed[0]["missing"], true);
    site.until_notices("press-2", &["raised"]).await?;
    site.reading("press-1", 2, 20.0).await?;
    site.reading("boiler-3", 2, 20.0).await?;
    site.until_notices("boiler-*", &["raised never-sent", "cleared"]).await?;
    // Having sent once, it is monitored as any other device.
    site.until_notices("press-1", &["raised never-sent", "cleared", "raised"]).await?;
    assert!(site.notices("pump-*").await?.is_empty());
    let states = "garenne_alarms WHERE is_missing";
    assert_eq!(site.database.count(states).await?, 2);
    site.end(workers).await
}

#[tokio::test]
async fn alarms_of_recalibrated_readings_are_judged_again() -> Result<()> {
    let site = Site::new().await?;
    let file = rules(
        &site.env,
        "above = 30\nfor = \"2s\"\n[[rule]]\nname = \"cold\"\nmetric = \"temperature\"\nbelow = 12",
    )?;
    let workers = [site.worker("first").await?, site.worker("second").await?];
    // Waves between 10 and 26, of more readings than a batch of the command has.
    let wave = |second: i64| (second, 18.0 + 8.0 * (second as f64 / 40.0).sin());
    let all: Vec<_> = (0..5_000).map(wave).collect();
    for (place, chunk) in all.chunks(1_000).enumerate() {
        readings(&site.env, &format!("t{place}"), "d", chunk).await?;
    }
    site.database.until_count("garenne_readings", 5_000).await?;
    let before = stored_alarms(&site.database).await?;
    assert_eq!(before.len(), 1, "only cold ones");
    let rules = Rules::load(&file).map_err(anyhow::Error::msg)?;
    let recalibrate = async |offset: &str| -> Result<()> {
        let path = site.env.folder().join("calibration.toml");
        fs::write(
            &path,
            format!("[[calibration]]\nmetric = \"temperature\"\nunit = \"Cel\"\noffset = {offset}"),
        )?;
        let (url, path) = (site.database.url(), path.display().to_string());
        let arguments = ["readings", "recalibrate", "--postgres-url", &url, "--calibration", &path];
        let ended = site.env.garenne(&arguments).await?;
        assert_eq!(
            ended.stdout.last().map(String::as_str),
            Some("alarms: the workers judge the changed values again")
        );
        site.database.until_count("garenne_rejudge", 0).await
    };
    recalibrate("10.0").await?;
    let warmer = stored_alarms(&site.database).await?;
    assert_eq!(warmer, judged_in_order(&site.database, &rules).await?);
    assert!(
        warmer.len() == 1 && warmer.keys().all(|(_, rule)| rule == "r"),
        "only hot ones: {:?}",
        warmer.keys()
    );
    recalibrate("0.0").await?;
    assert_eq!(stored_alarms(&site.database).await?, before);
    let twice =
        "SELECT 1 FROM garenne_notices GROUP BY payload #>> '{data,alarm}', payload #>> '{data,state}'
                 HAVING count(*) > 1";
    assert!(site.client.query(twice, &[]).await?.is_empty());
    site.end(workers).await
}
