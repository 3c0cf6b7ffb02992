//! Whom an alarm is told to and when: acknowledgement, snoozes, maintenance windows, reminders, and an outage of the
//! database. Each notice is sent once, with several workers.

use anyhow::Result;
use garenne_tests::harness::{
    postgres::Postgres,
    test_env::TestEnv,
    wait::{Seen, eventually},
    webhook::Webhook,
};
use serde_json::{Value, json};

use super::alarm_lifecycle::Site;

#[tokio::test]
async fn a_snoozed_alarm_sends_no_notice_until_the_snooze_ends() -> Result<()> {
    let site = Site::new().await?;
    let workers = site.workers("above = 30").await?;
    for device in ["a", "b", "c"] {
        site.reading(device, 1, 31.0).await?;
    }
    site.hook.until_alerts(3).await?;
    for device in ["a", "b"] {
        let id = site.open_alarm(device).await?;
        site.alarms(&["snooze", &id, "--for", "1h", "--by", "anna"]).await?;
    }
    let id = site.open_alarm("c").await?;
    site.alarms(&["snooze", &id, "--for", "3s", "--by", "anna"]).await?;
    // Its end is told when the snooze ends, and an alarm that is still open is told again.
    site.reading("b", 2, 20.0).await?;
    site.database.until_count("garenne_alarms WHERE ended IS NOT NULL AND clear_withheld", 1).await?;
    site.until_notices("c", &["raised", "reminder snooze-ended"]).await?;
    site.until_checked_again().await?;
    let listed = site.listed(&["--open", "--device", "a"]).await?;
    assert_eq!(listed[0]["snoozed_by"], "anna");
    assert!(listed[0]["snoozed_until"].is_string() && listed[0]["snoozed_at"].is_string(), "{listed:?}");
    for device in ["a", "b"] {
        assert_eq!(site.notices(device).await?, ["raised"]);
    }
    let id = site.open_alarm("a").await?;
    site.alarms(&["unsnooze", &id]).await?;
    site.until_notices("a", &["raised", "reminder snooze-ended"]).await?;
    let ended = "UPDATE garenne_alarms SET snoozed_until = now() WHERE device = 'b'";
    site.client.execute(ended, &[]).await?;
    site.until_notices("b", &["raised", "cleared"]).await?;
    // A snooze is told of once.
    site.until_checked_again().await?;
    assert_eq!(
        site.notices("a").await?.len() + site.notices("b").await?.len() + site.notices("c").await?.len(),
        6
    );
    let again =
        site.env.try_garenne(&["alarms", "--postgres-url", &site.database.url(), "unsnooze", &id]).await?;
    assert_eq!((again.code, again.stderr), (Some(1), vec![format!("garenne: alarm {id} is not snoozed")]));
    site.end(workers).await
}

#[tokio::test]
async fn alarms_in_a_maintenance_window_are_told_when_it_ends_if_they_are_open() -> Result<()> {
    let site = Site::new().await?;
    let workers = site.workers("above = 30").await?;
    site.reading("boiler-0", 1, 31.0).await?;
    site.hook.until_alerts(1).await?;
    let add = [
        "maintenance",
        "add",
        "--device",
        "boiler-*",
        "--for",
        "1h",
        "--reason",
        "new burner",
        "--by",
        "anna",
    ];
    let window = site.alarms(&add).await?.concat();
    // Open from before, raised in it, raised and over in it, and of another device.
    for (device, second, value) in
        [("boiler-1", 1, 31.0), ("boiler-2", 1, 31.0), ("boiler-2", 2, 20.0), ("press", 1, 31.0)]
    {
        site.reading(device, second, value).await?;
        site.database.until_count(&format!("garenne_readings WHERE device = '{device}'"), second).await?;
    }
    site.hook.until_alerts(2).await?;
    site.until_checked_again().await?;
    let listed = site.listed(&["--open"]).await?;
    let maintained: Vec<_> = listed.iter().filter(|alarm| alarm["in_maintenance"] == true).collect();
    assert_eq!((listed.len(), maintained.len()), (3, 2));
    assert_eq!(site.notices("boiler-0").await?, ["raised"]);
    assert_eq!(site.notices("boiler-1").await?.len() + site.notices("boiler-2").await?.len(), 0);
    let windows = site.alarms(&["maintenance", "list", "--json"]).await?;
    let stored: Value = serde_json::from_str(&windows.concat())?;
    assert_eq!((&stored["reason"], &stored["created_by"]), (&json!("new burner"), &json!("anna")));
    site.alarms(&["maintenance", "end", &window, "--by", "ben"]).await?;
    site.until_notices("boiler-0", &["raised", "reminder maintenance-ended"]).await?;
    site.until_notices("boiler-1", &["raised"]).await?;
    site.until_checked_again().await?;
    assert!(site.notices("boiler-2").await?.is_empty(), "it was raised and over within the window");
    assert_eq!(site.notices("press").await?, ["raised"]);
    assert_eq!(site.notices("boiler-0").await?.len(), 2);
    assert_eq!(site.alarms(&["maintenance", "list"]).await?, [""; 0]);
    assert_eq!(site.database.count("garenne_maintenance WHERE ended_by = 'ben'").await?, 1);
    site.end(workers).await
}

/// Two workers, one of which is killed and started again, send one reminder in each interval.
#[tokio::test]
async fn reminders_are_sent_once_in_each_interval_until_the_alarm_is_acknowledged() -> Result<()> {
    let site = Site::new().await?;
    let [first, second] = site.workers("above = 30\nremind_every = \"3s\"").await?;
    site.reading("d", 1, 31.0).await?;
    let reminders = "garenne_notices WHERE payload #>> '{data,state}' = 'reminder'";
    let until_more = async |wanted: i64| {
        eventually(format!("{wanted} reminders"), async || {
            let found = site.database.count(reminders).await?;
            Ok(Seen::when(found >= wanted, found))
        })
        .await
    };
    until_more(2).await?;
    first.kill().await?;
    let third = site.worker("third").await?;
    until_more(4).await?;
    let id = site.open_alarm("d").await?;
    site.alarms(&["ack", &id, "--by", "anna"]).await?;
    let sent = site.database.count(reminders).await?;
    site.until_checked_again().await?;
    assert_eq!(site.database.count(reminders).await?, sent, "an acknowledged alarm was told again");
    let listed = site.listed(&["--open"]).await?;
    assert_eq!(listed[0]["acked_by"], "anna");
    assert!(listed[0]["acked_at"].is_string(), "{listed:?}");
    // Each at least an interval after the notice before.
    let close =
        "SELECT count(*) FROM (SELECT at - lag(at) OVER (ORDER BY at) AS gap FROM garenne_notices) AS gaps
                 WHERE gap < interval '3 seconds'";
    assert_eq!(site.client.query_one(close, &[]).await?.get::<_, i64>(0), 0);
    let notices = site.notices("d").await?;
    assert!(notices[1..].iter().all(|notice| notice == "reminder still-open"), "{notices:?}");
    site.reading("d", 2, 20.0).await?;
    site.database.until_count("garenne_alarms WHERE ended IS NOT NULL", 1).await?;
    let late = site.env.try_garenne(&["alarms", "--postgres-url", &site.database.url(), "ack", &id]).await?;
    assert_eq!(late.code, Some(1));
    assert_eq!(late.stderr, [format!("garenne: alarm {id} is over since 2026-09-21T14:13:22Z")]);
    site.end_after_a_kill([second, third]).await
}

/// While the database is away no reminder is lost or sent twice, and a snooze that ends then is told afterwards.
#[tokio::test]
async fn an_outage_of_the_database_loses_and_doubles_no_notice() -> Result<()> {
    let env = TestEnv::new().await?;
    let server = Postgres::start().await?;
    let database = server.database().await?;
    let (client, hook) = (database.connect().await?, Webhook::start([]).await?);
    let mut site = Site { env, database, client, hook };
    let workers = site.workers("above = 30").await?;
    site.reading("d", 1, 31.0).await?;
    site.hook.until_alerts(1).await?;
    let id = site.open_alarm("d").await?;
    site.alarms(&["snooze", &id, "--for", "2s"]).await?;
    server.kill().await?;
    for worker in &workers {
        worker.until_not_ready_for("alarm monitor").await?;
    }
    server.restart().await?;
    site.client = site.database.connect().await?;
    site.until_notices("d", &["raised", "reminder snooze-ended"]).await?;
    site.until_checked_again().await?;
    assert_eq!(site.notices("d").await?.len(), 2);
    site.end(workers).await
}
