//! `GET /v1/readings`: readings of a device's metric, or buckets of them.

use std::time::SystemTime;

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use garenne_database::{Tables, rollups, units};
use garenne_protocol::sensor::Timestamp;
use serde_json::json;
use time::OffsetDateTime;
use tokio_postgres::{Row, types::ToSql};

use super::{
    format::{Format, csv_line},
    query::{MAX_READINGS, MAX_ROWS, Parameters, ReadingsQuery},
    step::{Buckets, Source},
    stream,
};
use crate::dashboard::{
    app_state::App,
    problem::Problem,
    workers_database::{Snapshot, in_time},
};

const READING: [&str; 7] = ["time", "value", "unit", "raw", "raw_unit", "quality", "calibration"];
const BUCKET: [&str; 8] = ["time", "unit", "count", "min", "mean", "max", "flagged", "consumption"];

pub(in crate::dashboard) async fn readings(
    State(app): App,
    headers: HeaderMap,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(parameters) = parameters?;
    let format = Format::of(parameters.format, &headers)?;
    let query = ReadingsQuery::new(&parameters, SystemTime::now()).map_err(Problem::bad_request)?;
    let database = app.database()?;
    let snapshot = database.snapshot().await?;
    let tables = &database.tables;
    let is_known = format!("SELECT FROM {tables}_series WHERE device = $1 LIMIT 1");
    if in_time(snapshot.query_opt(&is_known, &[&query.device])).await?.is_none() {
        snapshot.end().await;
        let detail = format!("no readings of device {:?} are stored", query.device);
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    }
    match &query.buckets {
        None => stored_readings(snapshot, tables, &query, format).await,
        Some(buckets) => bucket_rows(snapshot, tables, &query, buckets, format).await,
    }
}

async fn stored_readings(
    snapshot: Snapshot,
    tables: &Tables,
    query: &ReadingsQuery,
    format: Format,
) -> Result<Response, Problem> {
    let range = format!(
        "FROM {tables}_readings WHERE device = $1 AND metric = $2 AND time >= $3 AND time < $4 ORDER BY time"
    );
    let limit = query.limit.unwrap_or(MAX_ROWS);
    // Reads entries of the index only.
    let next = format!("SELECT time {range} OFFSET $5 LIMIT 1");
    let next = in_time(snapshot.query_opt(&next, &parameters(query, &i64::from(limit)))).await?;
    let next: Option<OffsetDateTime> = next.map(|row| row.get(0));
    if next.is_some() && query.limit.is_none() {
        snapshot.end().await;
        let detail = format!(
            "more than {MAX_ROWS} readings of {} are stored: give a step, a shorter period, or a limit for pages",
            query.what()
        );
        return Err(Problem::bad_request(detail));
    }
    let next = next.map(|from| page(query, from, format));
    let [unit, raw_unit] = ["unit", "raw_unit"].map(units::symbol);
    let select =
        format!("SELECT time, value, {unit}, raw, {raw_unit}, quality, calibration {range} LIMIT $5");
    let rows = in_time(snapshot.query_raw(&select, parameters(query, &i64::from(limit)))).await?;
    let begin = match format {
        Format::Json => head(query, &[("next", json!(next))], "readings"),
        Format::Csv => csv_head(&READING),
    };
    let body = stream::body(snapshot, rows, format, begin, end(format), write_reading).await?;
    let mut response = ([(header::CONTENT_TYPE, format.content_type())], body).into_response();
    if let Some(next) = next {
        let link = format!("<{next}>; rel=\"next\"").parse().expect("the address is escaped");
        response.headers_mut().insert(header::LINK, link);
    }
    Ok(response)
}

async fn bucket_rows(
    snapshot: Snapshot,
    tables: &Tables,
    query: &ReadingsQuery,
    buckets: &Buckets,
    format: Format,
) -> Result<Response, Problem> {
    let source = buckets.source();
    let exceeds_limit = match source {
        Source::Readings => format!(
            "SELECT FROM {tables}_readings WHERE device = $1 AND metric = $2 AND time >= $3 AND time < $4
             ORDER BY time OFFSET $5 LIMIT 1"
        ),
        // Stale hours are computed from readings.
        Source::Hours | Source::Days => format!(
            "SELECT FROM {tables}_series AS s CROSS JOIN LATERAL unnest(s.stale * tstzmultirange(tstzrange($3, $4))) AS part
             JOIN {tables}_readings AS r ON r.device = s.device AND r.metric = s.metric
                 AND r.time >= lower(part) AND r.time < upper(part)
             WHERE s.device = $1 AND s.metric = $2 OFFSET $5 LIMIT 1"
        ),
    };
    if in_time(snapshot.query_opt(&exceeds_limit, &parameters(query, &MAX_READINGS))).await?.is_some() {
        snapshot.end().await;
        let what = query.what();
        return Err(match source {
            Source::Readings => Problem::bad_request(format!(
                "more than {MAX_READINGS} readings of {what} are stored: give a shorter period, or a step of \
                 whole hours, for which there are rollups"
            )),
            Source::Hours | Source::Days => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("rollups of {what} are being computed: try again later, or give a shorter period"),
            ),
        });
    }
    let bucket = |time: &str| match buckets {
        Buckets::Seconds { .. } => format!("date_bin(make_interval(secs => $5), {time}, '2001-01-01Z')"),
        Buckets::Calendar { .. } => {
            format!("($5::timestamptz[])[width_bucket({time}, $5::timestamptz[])]")
        }
    };
    let of_rollups = |function: &str| {
        format!(
            "SELECT {}, {}, sum(count)::int8, min(min), {}, max(max), sum(flagged)::int8, sum(consumption)
             FROM {tables}_{function}($1, $2, $3, $4) GROUP BY 1, 2 ORDER BY 1, 2",
            bucket("time"),
            units::symbol("unit"),
            rollups::mean_of_means(tables)
        )
    };
    let select = match source {
        Source::Hours => of_rollups("hourly"),
        Source::Days => of_rollups("daily"),
        Source::Readings => format!(
            "SELECT b.*, CASE WHEN s.counter IS NOT NULL THEN coalesce(used.consumption, 0) END
             FROM (SELECT {} AS time, coalesce({}, '') AS unit, count(*) FILTER (WHERE f.usable),
                          min(r.value) FILTER (WHERE f.usable), {}, max(r.value) FILTER (WHERE f.usable),
                          count(*) FILTER (WHERE NOT f.usable)
                   FROM {tables}_readings AS r CROSS JOIN LATERAL (SELECT {tables}_is_usable(r.quality) AS usable) AS f
                   WHERE r.device = $1 AND r.metric = $2 AND r.time >= $3 AND r.time < $4 GROUP BY 1, 2) AS b
             LEFT JOIN (SELECT {} AS time, {} AS unit, sum(step.step) AS consumption
                        FROM {tables}_counter_steps($1, $2, $3, $4) AS step GROUP BY 1, 2) AS used USING (time, unit)
             LEFT JOIN {tables}_series AS s ON s.device = $1 AND s.metric = $2
             ORDER BY 1, 2",
            bucket("r.time"),
            units::symbol("r.unit"),
            rollups::mean_of_values(tables, "r.value", "f.usable"),
            bucket("step.time"),
            units::symbol("step.unit")
        ),
    };
    let (seconds, times);
    let (lengths, more): (&(dyn ToSql + Sync), _) = match buckets {
        Buckets::Seconds { step, .. } => {
            seconds = *step as f64;
            (&seconds, vec![("step_seconds", json!(step))])
        }
        Buckets::Calendar { text, zone, times: begins } => {
            times = begins;
            (times, vec![("step_seconds", json!(null)), ("step", json!(text)), ("zone", json!(zone))])
        }
    };
    let rows = in_time(snapshot.query_raw(&select, parameters(query, lengths))).await?;
    let begin = match format {
        Format::Json => head(query, &more, "buckets"),
        Format::Csv => csv_head(&BUCKET),
    };
    let body = stream::body(snapshot, rows, format, begin, end(format), write_bucket).await?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], body).into_response())
}

/// The parameters of a statement.
fn parameters<'a>(query: &'a ReadingsQuery, last: &'a (dyn ToSql + Sync)) -> [&'a (dyn ToSql + Sync); 5] {
    [&query.device, &query.metric, &query.from, &query.to, last]
}

/// The address of the page that begins at a time.
fn page(query: &ReadingsQuery, from: OffsetDateTime, format: Format) -> String {
    let limit = query.limit.map(|limit| limit.to_string()).unwrap_or_default();
    let [from, to] = [from, query.to].map(|time| Timestamp::from(time).to_string());
    let format = if format == Format::Csv { "csv" } else { "json" };
    let parameters = [
        ("device", &*query.device),
        ("metric", &query.metric),
        ("from", &from),
        ("to", &to),
        ("limit", &limit),
        ("format", format),
    ];
    let url = reqwest::Url::parse_with_params("http://console/v1/readings", parameters);
    let url = url.expect("the address is valid");
    format!("{}?{}", url.path(), url.query().unwrap_or_default())
}

/// The begin of a JSON object whose last field is a list.
fn head(query: &ReadingsQuery, more: &[(&str, serde_json::Value)], list: &str) -> Vec<u8> {
    let [from, to] = [query.from, query.to].map(|time| json!(Timestamp::from(time)));
    let fields =
        [("device", json!(query.device)), ("metric", json!(query.metric)), ("from", from), ("to", to)];
    let field = |(name, value): &(&str, serde_json::Value)| format!("{}:{value},", json!(name));
    let fields: String = fields.iter().chain(more).map(field).collect();
    format!("{{{fields}\"{list}\":[").into_bytes()
}

fn csv_head(names: &[&str]) -> Vec<u8> {
    let mut head = Vec::new();
    csv_line(&mut head, names);
    head
}

fn end(format: Format) -> &'static [u8] {
    if format == Format::Json { b"]}\n" } else { b"" }
}

fn write_reading(row: &Row, format: Format, is_first: bool, out: &mut Vec<u8>) {
    let (time, value) = (Timestamp::from(row.get::<_, OffsetDateTime>(0)), row.get::<_, f64>(1));
    let (unit, raw_unit): (Option<&str>, Option<&str>) = (row.get(2), row.get(4));
    let (raw, quality, calibration): (Option<f64>, Vec<&str>, Option<&str>) =
        (row.get(3), row.get(5), row.get(6));
    let fields = || {
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let raw = raw.map(|raw| raw.to_string()).unwrap_or_default();
        let quality = quality.join(" ");
        vec![time.to_string(), value.to_string(), text(unit), raw, text(raw_unit), quality, text(calibration)]
    };
    let json = || {
        json!({
            "time": time, "value": value, "unit": unit, "raw": raw, "raw_unit": raw_unit, "quality": quality,
            "calibration": calibration,
        })
    };
    format.write(out, is_first, fields, json);
}

fn write_bucket(row: &Row, format: Format, is_first: bool, out: &mut Vec<u8>) {
    let time = Timestamp::from(row.get::<_, OffsetDateTime>(0));
    let (unit, count, flagged): (&str, i64, i64) = (row.get(1), row.get(2), row.get(6));
    let [min, mean, max, consumption]: [Option<f64>; 4] = [3, 4, 5, 7].map(|index| row.get(index));
    let fields = || {
        let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        let [min, mean, max, used] = [min, mean, max, consumption].map(number);
        vec![time.to_string(), unit.to_owned(), count.to_string(), min, mean, max, flagged.to_string(), used]
    };
    let unit = (!unit.is_empty()).then_some(unit);
    let json = || {
        json!({
            "time": time, "unit": unit, "count": count, "min": min, "mean": mean, "max": max, "flagged": flagged,
            "consumption": consumption,
        })
    };
    format.write(out, is_first, fields, json);
}
