//! `GET /v1/devices`: the devices with their metrics and newest readings, and one device with its alarms.

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use garenne_database::units;
use garenne_protocol::sensor::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio_postgres::{Row, types::ToSql};

use super::format::{Format, csv_line};
use crate::{
    alarms::{AlarmFilter, AlarmView, DeviceFilter, alarms as alarms_of},
    dashboard::{app_state::App, problem::Problem, workers_database::in_time},
};

/// Devices of a page.
const DEFAULT_LIMIT: u32 = 200;
const MAX_LIMIT: u32 = 1_000;
/// Rows of a page, at most: a device has some ten metrics.
const MAX_SERIES: i64 = 50_000;
/// Alarms of a device, open ones first, then the newest.
const MAX_ALARMS: i64 = 100;

const SERIES: [&str; 7] = ["device", "metric", "time", "value", "unit", "quality", "stored_at"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::dashboard) struct Parameters {
    device: Option<String>,
    /// Devices whose names follow this one.
    after: Option<String>,
    limit: Option<u32>,
    format: Option<Format>,
}

/// The newest reading of a device's metric.
struct Series {
    device: String,
    metric: String,
    time: Timestamp,
    value: f64,
    unit: Option<String>,
    quality: Vec<String>,
    stored_at: Timestamp,
}

impl Series {
    fn new(row: &Row) -> Self {
        let time = |index: usize| Timestamp::from(row.get::<_, OffsetDateTime>(index));
        Self {
            device: row.get(0),
            metric: row.get(1),
            time: time(2),
            value: row.get(3),
            unit: row.get(4),
            quality: row.get(5),
            stored_at: time(6),
        }
    }

    fn json(&self) -> Value {
        let Self { metric, time, value, unit, quality, stored_at, .. } = self;
        json!({
            "metric": metric, "time": time, "value": value, "unit": unit, "quality": quality,
            "stored_at": stored_at,
        })
    }

    fn fields(&self) -> [String; 7] {
        let Self { device, metric, time, value, unit, quality, stored_at } = self;
        [
            device.clone(),
            metric.clone(),
            time.to_string(),
            value.to_string(),
            unit.clone().unwrap_or_default(),
            quality.join(" "),
            stored_at.to_string(),
        ]
    }
}

pub(in crate::dashboard) async fn devices(
    State(app): App,
    headers: HeaderMap,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(parameters) = parameters?;
    let format = Format::of(parameters.format, &headers)?;
    let limit = parameters.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Problem::bad_request(format!("limit: {limit}; expected 1 to {MAX_LIMIT}")));
    }
    let database = app.database()?;
    let (tables, snapshot) = (&database.tables, database.snapshot().await?);
    let after = parameters.after.as_deref().unwrap_or_default();
    let unit = units::symbol("last_unit");
    let select = format!(
        "SELECT device, metric, last_time, last_value, {unit}, last_quality, stored_at FROM {tables}_series
         WHERE device IN (SELECT DISTINCT device FROM {tables}_series
                          WHERE device > $1 AND ($2::text IS NULL OR device = $2) ORDER BY device LIMIT $3)
         ORDER BY device, metric LIMIT $4"
    );
    let values: [&(dyn ToSql + Sync); 4] = [&after, &parameters.device, &i64::from(limit), &MAX_SERIES];
    let series: Vec<_> = in_time(snapshot.query(&select, &values)).await?.iter().map(Series::new).collect();
    let mut alarms = None;
    if let Some(device) = &parameters.device {
        if series.is_empty() {
            snapshot.end().await;
            let detail = format!("no readings of device {device:?} are stored");
            return Err(Problem::new(StatusCode::NOT_FOUND, detail));
        }
        let filter = AlarmFilter {
            device: DeviceFilter::Named(device.clone()),
            limit: MAX_ALARMS,
            ..AlarmFilter::default()
        };
        alarms = Some(in_time(alarms_of(&snapshot, tables, &filter)).await?);
    }
    snapshot.end().await;
    let body = match format {
        Format::Json => json(&series, limit, alarms).to_string(),
        Format::Csv => {
            let mut lines = Vec::new();
            csv_line(&mut lines, &SERIES);
            series.iter().for_each(|series| csv_line(&mut lines, &series.fields()));
            String::from_utf8(lines).expect("texts and numbers")
        }
    };
    Ok(([(header::CONTENT_TYPE, format.content_type())], body).into_response())
}

/// The devices, and after which one the next page begins, if there is one.
fn json(series: &[Series], limit: u32, alarms: Option<Vec<AlarmView>>) -> Value {
    let devices: Vec<_> = series
        .chunk_by(|one, other| one.device == other.device)
        .map(|metrics| {
            let metrics_json: Vec<_> = metrics.iter().map(Series::json).collect();
            json!({ "device": metrics[0].device, "metrics": metrics_json })
        })
        .collect();
    let is_full = devices.len() == limit as usize;
    let next = series.last().filter(|_| is_full && alarms.is_none()).map(|last| &last.device);
    match alarms {
        None => json!({ "devices": devices, "next": next }),
        Some(alarms) => json!({ "devices": devices, "next": next, "alarms": alarms }),
    }
}
