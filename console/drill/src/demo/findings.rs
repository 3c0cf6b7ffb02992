//! The workers' findings in the recording: they read the first pass of each device's metrics from the database and
//! analyze it.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use garenne_protocol::sensor::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339, macros::format_description};
use tokio::time::{Instant, sleep};

use super::recording::Movable;
use crate::account::Store;

/// Maximum of windows. A recording of thousands of devices does not need all of them.
const MOST_WINDOWS: usize = 50;
/// Limit for all results. A window of some hundred values takes milliseconds.
const RESULTS_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between two queries for results.
const QUERY_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
struct Answer {
    count: u64,
    anomalies: Vec<Anomaly>,
}

#[derive(Deserialize)]
struct Anomaly {
    start: Timestamp,
    end: Timestamp,
    score: f64,
    signal: String,
}

/// Posts a task per window of the pass that began at `start`, and describes the results, one line per finding.
pub(super) async fn find(
    http: &reqwest::Client,
    gateway: &str,
    store: &Store,
    recording: &Movable,
    (start, speed): (SystemTime, f64),
) -> Result<String> {
    let from = OffsetDateTime::from(start);
    let to = from + recording.span.div_f64(speed) + Duration::from_millis(1);
    let mut windows = store.measured(&recording.devices(), from, to).await?;
    windows.truncate(MOST_WINDOWS);
    let mut ids = Vec::new();
    for (device, metric) in &windows {
        let (from, to) = (from.format(&Rfc3339)?, to.format(&Rfc3339)?);
        let window = json!({ "device": device, "metric": metric, "from": from, "to": to });
        let posting = http.post(format!("{gateway}/v1/tasks/window.analyze")).json(&window);
        let receipt: Value =
            posting.timeout(RESULTS_TIMEOUT).send().await?.error_for_status()?.json().await?;
        ids.push(receipt["ids"][0].as_str().context("the gateway's receipt has no task id")?.to_owned());
    }
    let deadline = Instant::now() + RESULTS_TIMEOUT;
    let mut outputs = store.outputs(&ids).await?;
    while outputs.len() < ids.len() && Instant::now() < deadline {
        sleep(QUERY_INTERVAL).await;
        outputs = store.outputs(&ids).await?;
    }
    let at = |time: Timestamp| recorded(recording, from, speed, time);
    let (mut values, answered, mut lines) = (0, outputs.len(), String::new());
    for (id, (device, metric)) in ids.iter().zip(&windows) {
        let Some(output) = outputs.remove(id) else { continue };
        let Answer { count, anomalies } = serde_json::from_value(output)?;
        values += count;
        for Anomaly { start, end, score, signal } in anomalies {
            lines += &format!(
                "  {device} {metric}: anomaly from {} to {} ({signal}, {score:.1} times its threshold)\n",
                at(start),
                at(end)
            );
        }
    }
    if lines.is_empty() {
        lines += "  none\n";
    }
    if answered < ids.len() {
        lines += &format!("  {} windows were not answered in time\n", ids.len() - answered);
    }
    Ok(format!(
        "\nAnomalies in the recording ({answered} windows, {values} readings, first pass; times as recorded):\n{lines}"
    ))
}

/// The time of day in the recording that belongs to a time in the pass that began at `from`.
fn recorded(recording: &Movable, from: OffsetDateTime, speed: f64, time: Timestamp) -> String {
    let since = time.as_unix_seconds() - from.unix_timestamp_nanos() as f64 / 1e9;
    let recorded = recording.first() + time::Duration::seconds_f64(since * speed);
    recorded.format(format_description!("[hour]:[minute]")).unwrap_or_else(|_| time.to_string())
}
