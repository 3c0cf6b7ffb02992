//! The values that are derived from changed readings.

use std::{collections::BTreeMap, str::FromStr, sync::Arc};

use deadpool_postgres::Transaction;
use garenne_database::{QueryResult, Tables, rollups::StaleHours};
use garenne_protocol::sensor::Unit;
use garenne_readings::{
    Flag, StoredReading,
    derive::{self, Derived},
};
use time::OffsetDateTime;
use tokio_postgres::{Row as StoredRow, types::ToSql};

use super::page::{Change, column};

/// The statements for a fleet's derived values.
pub(super) struct DerivedValues {
    load: String,
    write: String,
    remove: String,
    refresh_series: String,
    mark_stale: String,
    remove_series: String,
}

/// The derived values that are stored, and those that should be.
#[derive(Default)]
pub(super) struct DerivedChanges {
    written: Vec<NewValue>,
    removed: Vec<Key>,
}

impl DerivedChanges {
    /// Adds measured readings that were removed, so that what is known of their series follows.
    pub(super) fn remove_measured(&mut self, metric: &str, times: impl Iterator<Item = OffsetDateTime>) {
        self.removed.extend(times.map(|time| (metric.to_owned(), time)));
    }

    /// Metrics and times of the changed values.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&str, OffsetDateTime)> {
        let written = self.written.iter().map(|new| &new.key);
        written.chain(&self.removed).map(|(metric, time)| (metric.as_str(), *time))
    }
}

/// Metric and time of a device's value.
type Key = (String, OffsetDateTime);

/// A derived value to be stored.
struct NewValue {
    key: Key,
    value: f64,
    unit: Option<&'static str>,
    quality: String,
    origin: Origin,
}

/// The task that stored a reading, and its time. A derived value has that of the later of the two that it is derived from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Origin {
    stored_at: OffsetDateTime,
    task_id: String,
    worker: String,
}

impl DerivedValues {
    pub(super) fn new(tables: &Tables) -> Self {
        // A device's other metrics are found by its series: the key of readings begins with device and metric.
        let load = format!(
            "SELECT metric, time, value, unit, raw, quality, stored_at, task_id, worker FROM {tables}_readings
             WHERE device = $1 AND metric = ANY(ARRAY(SELECT metric FROM {tables}_series WHERE device = $1))
             AND time = ANY($2) AND time BETWEEN $3 AND $4 ORDER BY time, metric"
        );
        let write = format!(
            "INSERT INTO {tables}_readings AS reading
                 (device, metric, time, value, unit, quality, stored_at, task_id, worker)
             SELECT $1, metric, time, value, unit, string_to_array(quality, ','), stored_at, task_id, worker
             FROM unnest($2::text[], $3::timestamptz[], $4::float8[], $5::text[], $6::text[], $7::timestamptz[],
                         $8::text[], $9::text[])
                  AS new(metric, time, value, unit, quality, stored_at, task_id, worker)
             ORDER BY metric, time
             ON CONFLICT (device, metric, time) DO UPDATE SET value = excluded.value, unit = excluded.unit,
                 quality = excluded.quality WHERE reading.raw IS NULL"
        );
        let remove = format!(
            "DELETE FROM {tables}_readings AS reading USING unnest($2::text[], $3::timestamptz[]) AS gone(metric, time)
             WHERE reading.device = $1 AND reading.metric = gone.metric AND reading.time = gone.time
             AND reading.time BETWEEN $4 AND $5 AND reading.raw IS NULL"
        );
        // When a reading was stored last does not change: nothing has arrived.
        let refresh_series = format!(
            "INSERT INTO {tables}_series AS series
                 (device, metric, last_time, last_value, last_unit, last_quality, stored_at)
             SELECT $1, touched.metric, newest.* FROM unnest($2::text[]) AS touched(metric) CROSS JOIN LATERAL (
                 SELECT time, value, unit, quality, stored_at FROM {tables}_readings AS reading
                 WHERE reading.device = $1 AND reading.metric = touched.metric ORDER BY time DESC LIMIT 1) AS newest
             ORDER BY touched.metric
             ON CONFLICT (device, metric) DO UPDATE SET last_time = excluded.last_time,
                 last_value = excluded.last_value, last_unit = excluded.last_unit, last_quality = excluded.last_quality
             WHERE excluded.last_time >= series.last_time OR EXISTS (
                 SELECT FROM unnest($3::text[], $4::timestamptz[]) AS gone(metric, time)
                 WHERE gone.metric = series.metric AND gone.time = series.last_time)"
        );
        let mark_stale = format!(
            "UPDATE {tables}_series AS series SET pending_at = NULL,
                 stale = {tables}_stale_with(series.stale + new.stale, CASE WHEN series.counter IS NULL THEN '{{}}'
                     ELSE {tables}_hours_after(series.device, series.metric, new.stale) END)
             FROM unnest($2::text[], $3::tstzmultirange[]) AS new(metric, stale)
             WHERE series.device = $1 AND series.metric = new.metric"
        );
        let remove_series = format!(
            "WITH removed AS (
                 DELETE FROM {tables}_series AS series WHERE device = $1 AND metric = ANY($2) AND prunes = 0
                 AND NOT EXISTS (SELECT FROM {tables}_readings AS reading
                                 WHERE reading.device = series.device AND reading.metric = series.metric)
                 RETURNING device, metric),
             hours AS (DELETE FROM {tables}_rollups_hour AS hour USING removed
                       WHERE hour.device = removed.device AND hour.metric = removed.metric)
             DELETE FROM {tables}_rollups_day AS day USING removed
             WHERE day.device = removed.device AND day.metric = removed.metric"
        );
        Self { load, write, remove, refresh_series, mark_stale, remove_series }
    }

    /// Derives the values of a device again at the times of changed readings, which are written already.
    pub(super) async fn derive(
        &self,
        transaction: &Transaction<'_>,
        device: &str,
        changed: &[Change],
    ) -> QueryResult<DerivedChanges> {
        let times: Vec<_> = changed
            .iter()
            .filter(|change| concerns_derived(change))
            .map(|change| change.after.time)
            .collect();
        let (Some(first), Some(last)) = (times.first(), times.last()) else {
            return Ok(DerivedChanges::default());
        };
        // Another recalibration may have changed the other reading of a pair. The second of both sees the first.
        transaction.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", &[&device]).await?;
        let statement = transaction.prepare_cached(&self.load).await?;
        let parameters: [&(dyn ToSql + Sync); 4] = [&device, &times, first, last];
        let rows = transaction.query(&statement, &parameters).await?;
        Ok(changes(device, &rows))
    }

    /// Writes the changes of a device's derived values. Returns how many were written, and how many removed.
    pub(super) async fn write(
        &self,
        transaction: &Transaction<'_>,
        device: &str,
        DerivedChanges { written, removed }: &DerivedChanges,
    ) -> QueryResult<(u64, u64)> {
        let mut counts = (0, 0);
        if !written.is_empty() {
            let statement = transaction.prepare_cached(&self.write).await?;
            let parameters: [&(dyn ToSql + Sync); 9] = [
                &device,
                &column(written, |new| &*new.key.0),
                &column(written, |new| new.key.1),
                &column(written, |new| new.value),
                &column(written, |new| new.unit),
                &column(written, |new| &*new.quality),
                &column(written, |new| new.origin.stored_at),
                &column(written, |new| &*new.origin.task_id),
                &column(written, |new| &*new.origin.worker),
            ];
            counts.0 = transaction.execute(&statement, &parameters).await?;
        }
        let times = column(removed, |(_, time)| *time);
        if let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) {
            let statement = transaction.prepare_cached(&self.remove).await?;
            let metrics = column(removed, |(metric, _)| &**metric);
            let parameters: [&(dyn ToSql + Sync); 5] = [&device, &metrics, &times, first, last];
            counts.1 = transaction.execute(&statement, &parameters).await?;
        }
        Ok(counts)
    }

    /// Updates the series of a device's changed readings, derived ones included. Their newest readings may be others, their
    /// rollups are to be computed again, and the state of alarm rules is no longer that of the readings.
    pub(super) async fn refresh_series(
        &self,
        transaction: &Transaction<'_>,
        device: &str,
        changed: &[(&str, OffsetDateTime)],
        DerivedChanges { removed, .. }: &DerivedChanges,
    ) -> QueryResult<()> {
        let mut stale: BTreeMap<&str, StaleHours> = BTreeMap::new();
        for &(metric, time) in changed {
            stale.entry(metric).or_default().extend([time]);
        }
        let (touched, stale): (Vec<_>, Vec<_>) = stale.into_iter().unzip();
        let (metrics, times) = (column(removed, |(metric, _)| &**metric), column(removed, |(_, time)| *time));
        let statement = transaction.prepare_cached(&self.refresh_series).await?;
        let parameters: [&(dyn ToSql + Sync); 4] = [&device, &touched, &metrics, &times];
        transaction.execute(&statement, &parameters).await?;
        let statement = transaction.prepare_cached(&self.mark_stale).await?;
        transaction.execute(&statement, &[&device, &touched, &stale]).await?;
        if !removed.is_empty() {
            let statement = transaction.prepare_cached(&self.remove_series).await?;
            let parameters: [&(dyn ToSql + Sync); 2] = [&device, &metrics];
            transaction.execute(&statement, &parameters).await?;
        }
        Ok(())
    }
}

/// Whether values may be derived from the reading, before the change or after it.
fn concerns_derived(change: &Change) -> bool {
    let is_input =
        |unit: &Option<String>| unit.as_deref().and_then(Unit::get).is_some_and(derive::is_input_unit);
    !change.reads_same() && (is_input(&change.before.unit) || is_input(&change.after.unit))
}

/// Compares the derived values of a device's rows with those that its measured rows give.
fn changes(device: &str, rows: &[StoredRow]) -> DerivedChanges {
    let device: Arc<str> = device.into();
    let mut inputs = Vec::new();
    let mut origins = Vec::new();
    let mut stored: BTreeMap<Key, &StoredRow> = BTreeMap::new();
    for row in rows {
        let (metric, time): (&str, OffsetDateTime) = (row.get(0), row.get(1));
        match row.get(4) {
            raw @ Some(_) => {
                // A flag of another program is a doubt.
                let quality: Vec<&str> = row.get(5);
                let Ok(quality) = quality.into_iter().map(Flag::from_str).collect() else { continue };
                inputs.push(StoredReading {
                    device: Arc::clone(&device),
                    metric: metric.into(),
                    time: time.into(),
                    value: row.get(2),
                    unit: row.get::<_, Option<&str>>(3).and_then(Unit::get),
                    raw,
                    raw_unit: None,
                    sent_unit: None,
                    calibration: None,
                    quality,
                    counter: None,
                });
                origins.push(Origin { stored_at: row.get(6), task_id: row.get(7), worker: row.get(8) });
            }
            None if derive::is_derived(metric) => {
                stored.insert((metric.to_owned(), time), row);
            }
            None => {}
        }
    }
    let mut changes = DerivedChanges::default();
    for Derived { value, temperature, humidity } in derive::values_with_inputs(&inputs) {
        let quality: Vec<&str> = value.quality.iter().map(Into::into).collect();
        let new = NewValue {
            key: (value.metric.to_string(), value.time.into()),
            value: value.value,
            unit: value.unit.map(Unit::symbol),
            quality: quality.join(","),
            origin: origins[temperature].clone().max(origins[humidity].clone()),
        };
        let is_stored = stored
            .remove(&new.key)
            .is_some_and(|row| (new.value, new.unit, quality) == (row.get(2), row.get(3), row.get(5)));
        if !is_stored {
            changes.written.push(new);
        }
    }
    changes.removed = stored.into_keys().collect();
    changes
}
