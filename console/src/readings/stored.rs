//! `garenne readings latest` and `garenne readings list`: stored readings in the terminal.

use garenne_common::exit::{Exit, Failure};
use garenne_database::{DatabaseError, PostgresPool, Tables, muting::device_matches, units};
use garenne_operator::{output, table::lay_out};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio_postgres::{Row, types::ToSql};

use super::{
    age::{age, age_of_newest},
    cli::{LatestArgs, ListArgs},
    device_task::PAGE_TIMEOUT,
    selection::Selection,
};

struct Reading {
    device: String,
    metric: String,
    time: OffsetDateTime,
    value: f64,
    unit: Option<String>,
    quality: Vec<String>,
    stored_at: OffsetDateTime,
}

impl Reading {
    fn new(row: &Row) -> Self {
        Self {
            device: row.get(0),
            metric: row.get(1),
            time: row.get(2),
            value: row.get(3),
            unit: row.get(4),
            quality: row.get(5),
            stored_at: row.get(6),
        }
    }

    fn json(&self, now: OffsetDateTime) -> Value {
        let Self { device, metric, time, value, unit, quality, stored_at } = self;
        json!({
            "device": device, "metric": metric, "time": rfc3339(*time), "age_seconds": (now - *time).whole_seconds(),
            "value": value, "unit": unit, "quality": quality, "stored_at": rfc3339(*stored_at),
        })
    }

    /// Device, metric, value, unit, flags, age and time.
    fn cells(&self, age: String) -> Vec<String> {
        let Self { device, metric, time, value, unit, quality, .. } = self;
        vec![
            device.clone(),
            metric.clone(),
            value.to_string(),
            unit.clone().unwrap_or_else(|| "-".to_owned()),
            if quality.is_empty() { "-".to_owned() } else { quality.join(" ") },
            age,
            rfc3339(*time),
        ]
    }
}

fn rfc3339(time: OffsetDateTime) -> String {
    time.format(&Rfc3339).unwrap_or_default()
}

/// Prints the newest reading of each device's metric, by device and metric.
pub(super) async fn latest(database: (PostgresPool, Tables), args: &LatestArgs) -> Result<Exit, Failure> {
    let (matches, tables, unit) = (device_matches("$1", "device"), &database.1, units::symbol("last_unit"));
    let query = format!(
        "SELECT device, metric, last_time, last_value, {unit}, last_quality, stored_at FROM {tables}_series
         WHERE ($1::text IS NULL OR {matches}) AND ($2::text IS NULL OR metric = $2) ORDER BY device, metric"
    );
    let device = args.selection()?.device().map(str::to_owned);
    print(&rows(&database.0, &query, &[&device, &args.metric]).await?, age_of_newest, args.json)
}

/// Prints readings of a device, the newest first.
pub(super) async fn list(
    database: (PostgresPool, Tables),
    selection: &Selection,
    args: &ListArgs,
) -> Result<Exit, Failure> {
    let (matches, tables, unit) = (device_matches("$1", "device"), &database.1, units::symbol("unit"));
    let query = format!(
        "SELECT device, metric, time, value, {unit}, quality, stored_at FROM {tables}_readings
         WHERE {matches} AND ($2::text IS NULL OR metric = $2) AND time > $3 AND time <= $4
         ORDER BY time DESC, device, metric LIMIT $5"
    );
    let limit = i64::from(args.limit);
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&selection.device(), &selection.metric(), &selection.after, &selection.last, &limit];
    print(&rows(&database.0, &query, &parameters).await?, age, args.json)
}

/// The rows of a query.
pub(super) async fn rows(
    pool: &PostgresPool,
    query: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Failure> {
    let failed = |error: DatabaseError| {
        Failure::new(Exit::Failed, format_args!("Postgres at {}: {error}", pool.address()))
    };
    let rows = pool.within(PAGE_TIMEOUT, async |client| client.query(query, parameters).await);
    rows.await.map_err(failed)
}

fn print(
    rows: &[Row],
    age: impl Fn(OffsetDateTime, OffsetDateTime) -> String,
    is_json: bool,
) -> Result<Exit, Failure> {
    let now = OffsetDateTime::now_utc();
    let readings: Vec<_> = rows.iter().map(Reading::new).collect();
    if is_json {
        output::json_lines(readings.iter().map(|reading| reading.json(now)))?;
    } else if readings.is_empty() {
        output::lines("no readings\n")?;
    } else {
        let rows = readings.iter().map(|reading| reading.cells(age(reading.time, now)));
        output::lines(&lay_out(&["device", "metric", ">value", "unit", "flags", ">age", "time"], rows))?;
    }
    Ok(Exit::Done)
}
