//! The workers' findings in the recording: they read the first pass of each device's metrics from the database and
//! analyze it.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use anyhow::Context;
use garenne_chaos::audit::Store;
use garenne_protocol::sensor::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339, macros::format_description};
use tokio::time::{Instant, interval};

use super::recording::Movable;

/// Maximum of windows. A recording of thousands of devices does not need all of them.
const MOST_WINDOWS: usize = 50;
/// Limit for all results. A window of some hundred values takes milliseconds.
const RESULTS_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between two queries for results.
const TICK: Duration = Duration::from_millis(200);

/// When a pass began, and its speed.
pub(super) struct Pass {
    pub(super) start: SystemTime,
    pub(super) speed: f64,
}

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

/// Posts a task per window and describes the results, one line per finding.
///
/// # Errors
/// If the gateway or the database fails.
pub(super) async fn find(
    http: &reqwest::Client,
    gateway: &str,
    store: &Store,
    recording: &Movable,
    pass: &Pass,
) -> anyhow::Result<String> {
    let from = OffsetDateTime::from(pass.start);
    let to = from + recording.span.div_f64(pass.speed) + Duration::from_millis(1);
    let measured = store.measured(&recording.devices(), from, to).await?;
    let mut asked = Vec::new();
    for (device, metric) in measured.into_iter().take(MOST_WINDOWS) {
        let window = json!({
            "device": device,
            "metric": metric,
            "from": from.format(&Rfc3339)?,
            "to": to.format(&Rfc3339)?,
        });
        let posting = http.post(format!("{gateway}/v1/tasks/window.analyze")).json(&window).send();
        let receipt: Value = posting.await?.error_for_status()?.json().await?;
        let id = receipt["ids"][0].as_str().context("the gateway's receipt has no task id")?;
        asked.push((id.to_owned(), device, metric));
    }
    let answers = answers(store, &asked).await?;
    let mut lines = Vec::new();
    let (mut values, mut windows) = (0, 0);
    for (id, device, metric) in &asked {
        let Some(answer) = answers.get(id) else { continue };
        windows += 1;
        values += answer.count;
        for found in &answer.anomalies {
            let at = |time: Timestamp| recording.recorded(time, pass);
            let Anomaly { start, end, score, signal } = found;
            let score = format!("{score:.1}");
            lines.push(format!(
                "  {device} {metric}: anomaly from {} to {} ({signal}, {score} times its threshold)",
                at(*start),
                at(*end)
            ));
        }
    }
    let mut text = format!(
        "\nAnomalies in the recording ({windows} windows, {values} readings, first pass; times as recorded):\n"
    );
    match lines.is_empty() {
        true => text += "  none\n",
        false => lines.iter().for_each(|line| text += &format!("{line}\n")),
    }
    if windows < asked.len() {
        text += &format!("  {} windows were not answered in time\n", asked.len() - windows);
    }
    Ok(text)
}

/// The results of these tasks that arrive in time.
async fn answers(
    store: &Store,
    asked: &[(String, String, String)],
) -> anyhow::Result<HashMap<String, Answer>> {
    let ids: Vec<&str> = asked.iter().map(|(id, ..)| id.as_str()).collect();
    let started = Instant::now();
    let mut ticks = interval(TICK);
    loop {
        ticks.tick().await;
        let outputs = store.outputs(&ids).await?;
        if outputs.len() == ids.len() || started.elapsed() > RESULTS_TIMEOUT {
            let read = |(id, output)| serde_json::from_value(output).map(|answer| (id, answer));
            return Ok(outputs.into_iter().map(read).collect::<Result<_, _>>()?);
        }
    }
}

impl Movable {
    /// The time of day in the recording that belongs to a time in a pass.
    fn recorded(&self, time: Timestamp, pass: &Pass) -> String {
        let Some(first) = self.first() else { return time.to_string() };
        let since =
            time.as_unix_seconds() - OffsetDateTime::from(pass.start).unix_timestamp_nanos() as f64 / 1e9;
        let recorded = first + time::Duration::seconds_f64(since * pass.speed);
        let format = format_description!("[hour]:[minute]");
        recorded.format(&format).unwrap_or_else(|_| time.to_string())
    }
}
