//! The table of series: for each device and metric the newest reading, when one was stored last, the hours whose
//! rollups are to be computed, and the state of rules.

use std::collections::{BTreeMap, HashMap};

use deadpool_postgres::Transaction;
use garenne::handler::ReadingRow;
use garenne_database::{QueryResult, Tables, rollups::StaleHours};
use garenne_protocol::sensor::{Counter, Unit};
use tokio_postgres::types::Json;

use crate::{
    changed_reading::ChangedReading,
    columns::{Parameters, column},
    pending_rules::SeriesPending,
};

/// How the values of a counter differ, and in which unit they are stored.
pub(super) type SeriesCounter = (Counter, Option<Unit>);

/// The counter of a series as it is stored.
pub(super) async fn counter(
    transaction: &Transaction<'_>,
    tables: &Tables,
    device: &str,
    metric: &str,
) -> QueryResult<Option<SeriesCounter>> {
    let select = format!(
        "SELECT counter, last_unit FROM {tables}_series WHERE device = $1 AND metric = $2 AND counter IS NOT NULL"
    );
    let statement = transaction.prepare_cached(&select).await?;
    let row = transaction.query_opt(&statement, &[&device, &metric]).await?;
    Ok(row.and_then(|row| {
        let Json(counter) = row.try_get(0).ok()?;
        Some((counter, row.get::<_, Option<&str>>(1).and_then(Unit::get)))
    }))
}

/// The statement that updates a fleet's series.
pub(super) fn update_statement(tables: &Tables) -> String {
    let newest = "excluded.last_time >= series.last_time";
    let of_newest =
        |name: &str| format!("{name} = CASE WHEN {newest} THEN excluded.{name} ELSE series.{name} END");
    let of_newest = ["last_value", "last_unit", "last_quality", "counter"].map(of_newest).join(", ");
    // The consumption of an hour depends on the reading before it, so that of the next reading changes with this one.
    // The state of rules is that of the readings which the transaction has seen, so none may have been stored since then.
    format!(
        "INSERT INTO {tables}_series AS series
             (device, metric, last_time, last_value, last_unit, last_quality, stored_at, stale, pending, pending_at, counter)
         SELECT device, metric, time, value, unit, string_to_array(quality, ','), clock_timestamp(), stale, pending, seen,
                counter
         FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::float8[], $5::text[], $6::text[],
                     $7::tstzmultirange[], $8::jsonb[], $9::timestamptz[], $10::jsonb[])
              AS input(device, metric, time, value, unit, quality, stale, pending, seen, counter)
         ON CONFLICT (device, metric) DO UPDATE SET stored_at = excluded.stored_at,
             pending = excluded.pending,
             pending_at = CASE WHEN excluded.pending_at = series.stored_at THEN excluded.stored_at END,
             stale = CASE
                 WHEN {newest} AND excluded.counter IS DISTINCT FROM series.counter
                     THEN {tables}_stale_with(series.stale + excluded.stale, {tables}_all_hours(series.device, series.metric))
                 WHEN series.counter IS NOT NULL THEN {tables}_stale_with(series.stale + excluded.stale,
                     {tables}_hours_after(series.device, series.metric, excluded.stale))
                 WHEN series.stale @> excluded.stale THEN series.stale
                 ELSE {tables}_stale_with(series.stale, excluded.stale) END,
             last_time = greatest(excluded.last_time, series.last_time), {of_newest}"
    )
}

/// Updates the series of changed readings, and the state of rules of those that have one. The last statement before the commit, because transactions that change
/// readings of the same series wait here for each other; they do so in the order of device and metric.
pub(super) async fn update(
    transaction: &Transaction<'_>,
    statement: &str,
    changed: &[ChangedReading<'_>],
    pending: &HashMap<(&str, &str), SeriesPending>,
) -> QueryResult<()> {
    let mut series: BTreeMap<(&str, &str), (&ReadingRow, StaleHours)> = BTreeMap::new();
    for ChangedReading { row, .. } in changed {
        let key = (&*row.device, &*row.metric);
        let (newest, hours) = series.entry(key).or_insert_with(|| (row, StaleHours::default()));
        hours.extend([row.time]);
        if row.time > newest.time {
            *newest = row;
        }
    }
    if series.is_empty() {
        return Ok(());
    }
    let pending: Vec<_> = series.keys().map(|key| pending.get(key)).collect();
    let (rows, hours): (Vec<_>, Vec<_>) = series.into_values().unzip();
    let statement = transaction.prepare_cached(statement).await?;
    let parameters: Parameters<'_, 10> = [
        &column(&rows, |row| &*row.device),
        &column(&rows, |row| &*row.metric),
        &column(&rows, |row| row.time),
        &column(&rows, |row| row.value),
        &column(&rows, |row| row.unit),
        &column(&rows, |row| row.quality.join(",")),
        &hours,
        &column(&pending, |pending| pending.map(|pending| Json(&pending.rules))),
        &column(&pending, |pending| pending.and_then(|pending| pending.stored_at)),
        &column(&rows, |row| row.counter.map(Json)),
    ];
    transaction.execute(&statement, &parameters).await.map(drop)
}
