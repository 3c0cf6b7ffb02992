//! Corrections of stored readings: the original stays, what is computed of it follows, and nothing undoes them.

use anyhow::{Context, Result};
use garenne_tests::harness::{client::with_id, dashboard::Dashboard};
use serde_json::{Value, json};

use super::{alarm_lifecycle::Site, alarms::rules};

/// 2026-09-21T14:13:20Z
const START: i64 = 1_790_000_000;
const FROM: &str = "2026-09-21T14:13:20Z";

/// Pairs of a temperature and a humidity, of which dew points are derived: 20 °C, and 50 °C in seconds 3 to 5.
fn pairs() -> Value {
    let pair = |second: i64| {
        let value = if (3..6).contains(&second) { 50.0 } else { 20.0 };
        let reading = |metric: &str, value: f64, unit: &str| json!({"device": "d", "metric": metric, "value": value, "unit": unit, "time": START + second});
        [reading("temperature", value, "Cel"), reading("humidity", 50.0, "%RH")]
    };
    (0..10).flat_map(pair).collect()
}

async fn publish(site: &Site, id: &str, readings: &Value) -> Result<()> {
    let body = serde_json::to_vec(readings)?;
    site.env.client().publish("garenne.tasks", "reading.process", with_id(id), &body).await
}

/// Runs `garenne readings …` for the temperatures from second `from` to `to`.
async fn correct(site: &Site, verb: &str, from: i64, to: i64, more: &[&str]) -> Result<Value> {
    let [from, to] = [from, to].map(|second| format!("2026-09-21T14:13:{}Z", 20 + second));
    let url = site.database.url();
    let range = ["--device", "d", "--metric", "temperature", "--from", &from, "--to", &to, "--json"];
    let why = ["--postgres-url", &url, "--reason", "probe in the oven"];
    let ended = site.env.garenne(&[&["readings", verb], &range[..], &why, more].concat()).await?;
    Ok(serde_json::from_str(&ended.stdout.join("\n"))?)
}

/// The temperatures by second: value, raw value and flags; then the seconds of dew points, the hourly rollup, and the
/// alarms that were not withdrawn.
async fn stored(site: &Site) -> Result<[String; 4]> {
    let text = async |query: &str| -> Result<String> {
        Ok(site.client.query_one(query, &[]).await?.get::<_, Option<String>>(0).unwrap_or_default())
    };
    let second = format!("extract(epoch FROM time)::bigint - {START}");
    Ok([
        text(&format!(
            "SELECT string_agg(concat_ws('/', {second}, value, raw, nullif(array_to_string(quality, '+'), '')), ' ' ORDER BY time)
             FROM garenne_readings WHERE metric = 'temperature' AND (value <> 20 OR quality <> '{{}}')"
        ))
        .await?,
        text(&format!("SELECT string_agg(({second})::text, ' ' ORDER BY time) FROM garenne_readings WHERE metric = 'dew_point'"))
            .await?,
        text("SELECT string_agg(concat_ws('/', count, flagged, max), ' ') FROM garenne_hourly('d', 'temperature', '2026-09-21Z', '2026-09-22Z')")
            .await?,
        text(&format!("SELECT string_agg(({})::text, ' ') FROM garenne_alarms WHERE withdrawn_at IS NULL", second.replace("time", "since")))
            .await?,
    ])
}

#[tokio::test]
async fn corrections_keep_the_original_and_are_followed_and_never_undone() -> Result<()> {
    let site = Site::new().await?;
    rules(&site.env, "above = 40")?;
    let worker = site.worker("first").await?;
    publish(&site, "task", &pairs()).await?;
    site.database.until_count("garenne_readings WHERE metric = 'temperature'", 10).await?;
    let all = "0 1 2 3 4 5 6 7 8 9";
    let as_sent = ["3/50/50 4/50/50 5/50/50", all, "10/0/50", "3"].map(str::to_owned);
    assert_eq!(stored(&site).await?, as_sent);

    // Nothing without a confirmation, and nothing with --dry-run.
    let refused = correct(&site, "delete", 3, 6, &[]).await.unwrap_err().to_string();
    assert!(
        refused.contains("delete changes stored readings: check with --dry-run, then repeat with --yes"),
        "{refused}"
    );
    let dry = correct(&site, "delete", 3, 6, &["--dry-run"]).await?;
    assert_eq!((&dry["read"], &dry["corrected"]), (&json!(3), &json!(3)));
    assert_eq!((&dry["derived_written"], &dry["derived_removed"]), (&json!(0), &json!(9)));
    assert_eq!(stored(&site).await?, as_sent);

    let flagged = correct(&site, "flag", 3, 4, &["--yes"]).await?;
    assert_eq!((&flagged["corrected"], &flagged["derived_removed"]), (&json!(1), &json!(3)));
    assert_eq!(correct(&site, "flag", 3, 4, &["--yes"]).await?["unchanged"], json!(1));
    correct(&site, "amend", 4, 5, &["--offset", "-28.5", "--yes"]).await?;
    correct(&site, "delete", 5, 6, &["--yes"]).await?;
    site.database.until_count("garenne_rejudge WHERE metric = 'temperature'", 0).await?;
    let corrected = ["3/50/50/impossible+corrected 4/21.5/50/corrected", "0 1 2 4 6 7 8 9", "8/1/21.5", ""]
        .map(str::to_owned);
    assert_eq!(stored(&site).await?, corrected);

    // The same task under another id, a recalibration, and another value with `replace`.
    publish(&site, "again", &pairs()).await?;
    site.env.until_settled(2).await?;
    assert_eq!(stored(&site).await?, corrected);
    let calibration = site.env.folder().join("calibration.toml");
    std::fs::write(&calibration, "[[calibration]]\nmetric = \"temperature\"\nvalid = [0, 50]\n")?;
    let (url, path) = (site.database.url(), calibration.display().to_string());
    let arguments = ["readings", "recalibrate", "--postgres-url", &url, "--calibration", &path, "--json"];
    let recalibrated = site.env.garenne(&arguments).await?;
    let counts: Value = serde_json::from_str(&recalibrated.stdout.join("\n"))?;
    assert_eq!(counts["corrected"], json!(2), "{counts}");
    assert_eq!(stored(&site).await?, corrected);
    // Another value of the deleted reading is a conflict as that of any other, and not silently left out.
    publish(
        &site,
        "another",
        &json!([{"device": "d", "metric": "temperature", "value": 60.0, "unit": "Cel", "time": START + 5}]),
    )
    .await?;
    let dead = site.env.take_all("garenne.dead", 1).await?.remove(0);
    let error = "conflicting value for d temperature: stored 50, received 60";
    assert_eq!((dead.id(), dead.text("garenne-error").as_str()), ("another", error));
    assert_eq!(stored(&site).await?, corrected);
    worker.stop().await?;
    let plan = site.env.worker("replacing")?.option("--sink", "postgres").option("--postgres-url", &url);
    let replacing = plan.env("GARENNE_ON_CONFLICT", "replace").start().await?;
    let mut others = pairs();
    for reading in others.as_array_mut().context("readings")? {
        reading["value"] = json!(reading["value"].as_f64().unwrap_or_default() + 1.0);
    }
    publish(&site, "replaced", &others).await?;
    // The broker's count may lack the last acks of a worker that has stopped.
    replacing.until_metric("garenne_settlements_total", &["settlement=\"acked\""], 1.0).await?;
    let temperatures = &stored(&site).await?[0];
    for kept in ["3/50/50/impossible+corrected", "4/21.5/50/corrected", "6/21/21"] {
        assert!(temperatures.contains(kept), "{temperatures}");
    }
    assert!(!temperatures.contains(" 5/"), "{temperatures}");
    replacing.stop().await?;

    // Who, why, and what it was.
    let list = site.env.garenne(&["readings", "corrections", "--postgres-url", &url, "--json"]).await?;
    let rows: Vec<Value> =
        list.stdout.iter().map(|line| Ok(serde_json::from_str(line)?)).collect::<Result<_>>()?;
    let shown: Vec<_> = rows
        .iter()
        .map(|row| format!("{} {} {} {}", row["action"], row["was_value"], row["value"], row["reason"]))
        .collect();
    let why = "\"probe in the oven\"";
    assert_eq!(
        shown,
        [
            format!("\"delete\" 50 null {why}"),
            format!("\"amend\" 50 21.5 {why}"),
            format!("\"flag\" 50 50 {why}")
        ]
    );
    assert!(rows.iter().all(|row| row["corrected_by"].as_str().is_some_and(|by| !by.is_empty())), "{rows:?}");
    let audit = site.env.garenne(&["audit", "list", "--command", "readings.amend", "--json"]).await?;
    assert!(audit.stdout.join("\n").contains("probe in the oven"), "{:?}", audit.stdout);
    let dashboard = Dashboard::with_database(&site.env, &url).await?;
    let read = dashboard
        .json(&format!("/v1/readings?device=d&metric=temperature&from={FROM}&to=2026-09-21T14:13:30Z"))
        .await?;
    assert!(read.to_string().contains("\"corrected\""), "{read}");
    Ok(())
}

#[tokio::test]
async fn stored_readings_are_shown_in_the_terminal_with_their_age() -> Result<()> {
    let site = Site::new().await?;
    rules(&site.env, "above = 40")?;
    let worker = site.worker("first").await?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let reading = |device: &str, value: f64, time: u64| json!({"device": device, "metric": "level", "value": value, "unit": "m", "time": time});
    let old = 1_400_000_000;
    publish(
        &site,
        "task",
        &json!([
            reading("old-1", 1.5, old),
            reading("new-1", 2.5, now - 10 * 3600 - 1800),
            reading("new-1", 3.5, now - 2 * 3600 - 1800)
        ]),
    )
    .await?;
    site.database.until_count("garenne_readings", 3).await?;
    let url = site.database.url();
    let readings = async |arguments: &[&str]| {
        let ended = site.env.garenne(&[&["readings"], arguments, &["--postgres-url", &url]].concat()).await?;
        anyhow::Ok(
            ended
                .stdout
                .iter()
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>(),
        )
    };
    let latest = readings(&["latest"]).await?;
    assert_eq!(latest[0], "device metric value unit flags age time");
    assert!(latest[1].starts_with("new-1 level 3.5 m - 2 h ago "), "{latest:?}");
    let years = (now - old) * 100 / 36_525 / 86_400;
    assert_eq!(latest[2], format!("old-1 level 1.5 m - {years} years ago (old) 2014-05-13T16:53:20Z"));
    assert_eq!(readings(&["latest", "--device", "none*"]).await?, ["no readings"]);
    let json: Value = serde_json::from_str(&readings(&["latest", "--device", "old*", "--json"]).await?[0])?;
    assert_eq!(
        (&json["value"], &json["unit"], &json["time"]),
        (&json!(1.5), &json!("m"), &json!("2014-05-13T16:53:20Z"))
    );
    assert!(json["age_seconds"].as_u64() >= Some(now - old), "{json}");

    let all = readings(&["list", "--device", "new-1"]).await?;
    assert!(all.len() == 3 && all[1].contains(" 3.5 m ") && all[2].contains(" 2.5 m - 10 h ago "), "{all:?}");
    assert_eq!(readings(&["list", "--device", "new-1", "--limit", "1"]).await?, all[..2]);
    assert_eq!(
        readings(&["list", "--device", "*", "--to", "2015-01-01T00:00:00Z"]).await?[1],
        latest[2].replace(" (old)", "")
    );
    assert_eq!(readings(&["list", "--device", "new-1", "--metric", "other"]).await?, ["no readings"]);
    worker.kill().await?;
    Ok(())
}
