//! The values that are derived from stored readings. They follow when what they are derived from is replaced, corrected or
//! recalibrated.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use deadpool_postgres::Transaction;
use garenne_protocol::sensor::Unit;
use garenne_readings::{
    CalibratedReading, Flag,
    derive::{self, Derived},
};
use time::OffsetDateTime;
use tokio_postgres::Row;

use crate::{
    error::QueryResult,
    parameters::{Parameters, column},
    rollups::StaleHours,
    tables::Tables,
};

/// Identifies a reading.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key<'a> {
    /// The device.
    pub device: Cow<'a, str>,
    /// The metric.
    pub metric: Cow<'a, str>,
    /// The time of the measurement.
    pub time: OffsetDateTime,
}

impl<'a> Key<'a> {
    /// The key of a reading.
    pub fn new(device: &'a str, metric: &'a str, time: OffsetDateTime) -> Self {
        Self { device: device.into(), metric: metric.into(), time }
    }

    /// The columns of keys, as parameters for `unnest`.
    pub(crate) fn columns<'k>(
        keys: impl IntoIterator<Item = &'k Key<'a>>,
    ) -> (Vec<&'k str>, Vec<&'k str>, Vec<OffsetDateTime>)
    where
        'a: 'k,
    {
        let (mut devices, mut metrics, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for Key { device, metric, time } in keys {
            devices.push(&**device);
            metrics.push(&**metric);
            times.push(*time);
        }
        (devices, metrics, times)
    }
}

/// A device and a time at which values may be derived.
pub type Place<'a> = (&'a str, OffsetDateTime);

/// The statements for a fleet's derived values.
pub struct DerivedValues {
    tables: Tables,
    lock: String,
    load: String,
    write: String,
    remove: String,
    lock_series: String,
    refresh_series: String,
    mark_stale: String,
    remove_series: String,
}

/// The derived values that are to be stored, and those that are to be removed.
#[derive(Default)]
pub struct DerivedChanges {
    written: Vec<NewValue>,
    removed: Vec<Key<'static>>,
}

/// A measured reading as it would be after a change.
pub struct Reading<'a> {
    /// Identifies it.
    pub key: Key<'a>,
    /// The value.
    pub value: f64,
    /// The unit of the value.
    pub unit: Option<&'a str>,
    /// The flags.
    pub quality: &'a [String],
}

impl DerivedChanges {
    /// How many values are to be stored, and how many are to be removed.
    pub fn counts(&self) -> (u64, u64) {
        (self.written.len() as u64, self.removed.len() as u64)
    }

    /// Adds measured readings that were removed, so that what is known of their series follows.
    pub fn remove_measured<'a>(&mut self, keys: impl Iterator<Item = Key<'a>>) {
        self.removed.extend(keys.map(|Key { device, metric, time }| Key {
            device: device.into_owned().into(),
            metric: metric.into_owned().into(),
            time,
        }));
    }

    fn keys<'a>(&'a self) -> impl Iterator<Item = &'a Key<'a>> {
        self.written.iter().map(|new| -> &Key<'_> { &new.key }).chain(&self.removed)
    }
}

/// A derived value to be stored.
struct NewValue {
    key: Key<'static>,
    value: f64,
    unit: Option<&'static str>,
    quality: String,
    stored_by: StoredBy,
}

/// The task that stored a reading, and its time. A derived value has that of the later of the two that it is derived from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct StoredBy {
    stored_at: OffsetDateTime,
    task_id: String,
    worker: String,
}

impl DerivedValues {
    /// For a fleet's tables.
    pub fn new(tables: &Tables) -> Self {
        // Another transaction may change the other reading of a pair. The second of both sees the first.
        let lock = "SELECT pg_advisory_xact_lock(hashtextextended(device, 0))
                    FROM (SELECT DISTINCT device FROM unnest($1::text[]) AS device ORDER BY 1) AS changed"
            .to_owned();
        // A device's other metrics are found by its series: the key of readings begins with device and metric. The limit
        // makes the server look each key up: without statistics it would join all readings of the series with all times.
        let load = format!(
            "SELECT r.device, r.metric, r.time, r.value, r.unit, r.raw, r.quality, r.stored_at, r.task_id, r.worker
             FROM unnest($1::text[], $2::timestamptz[]) AS changed(device, time)
             JOIN {tables}_series AS s ON s.device = changed.device
             CROSS JOIN LATERAL (
                 SELECT * FROM {tables}_readings
                 WHERE device = s.device AND metric = s.metric AND time = changed.time AND time BETWEEN $3 AND $4
                 LIMIT 1) AS r
             ORDER BY r.device, r.time, r.metric"
        );
        let write = format!(
            "INSERT INTO {tables}_readings AS reading
                 (device, metric, time, value, unit, quality, stored_at, task_id, worker)
             SELECT device, metric, time, value, unit, string_to_array(quality, ','), stored_at, task_id, worker
             FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::float8[], $5::text[], $6::text[],
                         $7::timestamptz[], $8::text[], $9::text[])
                  AS new(device, metric, time, value, unit, quality, stored_at, task_id, worker)
             ORDER BY device, metric, time
             ON CONFLICT (device, metric, time) DO UPDATE SET value = excluded.value, unit = excluded.unit,
                 quality = excluded.quality WHERE reading.raw IS NULL"
        );
        let remove = format!(
            "DELETE FROM {tables}_readings AS reading
             USING unnest($1::text[], $2::text[], $3::timestamptz[]) AS gone(device, metric, time)
             WHERE reading.device = gone.device AND reading.metric = gone.metric AND reading.time = gone.time
             AND reading.time BETWEEN $4 AND $5 AND reading.raw IS NULL"
        );
        let lock_series = format!(
            "SELECT FROM {tables}_series WHERE (device, metric) IN (SELECT * FROM unnest($1::text[], $2::text[]))
             ORDER BY device COLLATE \"C\", metric COLLATE \"C\" FOR UPDATE"
        );
        // When a reading was stored last does not change: nothing has arrived.
        let refresh_series = format!(
            "INSERT INTO {tables}_series AS series
                 (device, metric, last_time, last_value, last_unit, last_quality, stored_at)
             SELECT touched.device, touched.metric, newest.*
             FROM unnest($1::text[], $2::text[]) AS touched(device, metric) CROSS JOIN LATERAL (
                 SELECT time, value, unit, quality, stored_at FROM {tables}_readings AS reading
                 WHERE reading.device = touched.device AND reading.metric = touched.metric
                 ORDER BY time DESC LIMIT 1) AS newest
             ORDER BY touched.device, touched.metric
             ON CONFLICT (device, metric) DO UPDATE SET last_time = excluded.last_time,
                 last_value = excluded.last_value, last_unit = excluded.last_unit, last_quality = excluded.last_quality
             WHERE excluded.last_time >= series.last_time OR EXISTS (
                 SELECT FROM unnest($3::text[], $4::text[], $5::timestamptz[]) AS gone(device, metric, time)
                 WHERE gone.device = series.device AND gone.metric = series.metric AND gone.time = series.last_time)"
        );
        let mark_stale = format!(
            "UPDATE {tables}_series AS series SET pending_at = NULL,
                 stale = {tables}_stale_with(series.stale + new.stale, CASE WHEN series.counter IS NULL THEN '{{}}'
                     ELSE {tables}_hours_after(series.device, series.metric, new.stale) END)
             FROM unnest($1::text[], $2::text[], $3::tstzmultirange[]) AS new(device, metric, stale)
             WHERE series.device = new.device AND series.metric = new.metric"
        );
        let remove_series = format!(
            "WITH removed AS (
                 DELETE FROM {tables}_series AS series
                 WHERE (device, metric) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND prunes = 0
                 AND NOT EXISTS (SELECT FROM {tables}_readings AS reading
                                 WHERE reading.device = series.device AND reading.metric = series.metric)
                 RETURNING device, metric),
             hours AS (DELETE FROM {tables}_rollups_hour AS hour USING removed
                       WHERE hour.device = removed.device AND hour.metric = removed.metric)
             DELETE FROM {tables}_rollups_day AS day USING removed
             WHERE day.device = removed.device AND day.metric = removed.metric"
        );
        let tables = tables.clone();
        Self { tables, lock, load, write, remove, lock_series, refresh_series, mark_stale, remove_series }
    }

    /// Derives values again at the places of changed readings, which are written already, and at those of other readings
    /// where a derived value is stored.
    pub async fn derive(
        &self,
        transaction: &Transaction<'_>,
        changed: &BTreeSet<Place<'_>>,
        others: &[Place<'_>],
    ) -> QueryResult<DerivedChanges> {
        let devices: Vec<_> = changed.iter().chain(others).map(|(device, _)| *device).collect();
        if !devices.is_empty() {
            let lock = transaction.prepare_cached(&self.lock).await?;
            transaction.execute(&lock, &[&devices]).await?;
        }
        self.preview(transaction, changed, others, &[]).await
    }

    /// As [`derive`](Self::derive), if `readings` were stored in place of those with their keys. Locks nothing.
    pub async fn preview(
        &self,
        transaction: &Transaction<'_>,
        changed: &BTreeSet<Place<'_>>,
        others: &[Place<'_>],
        readings: &[Reading<'_>],
    ) -> QueryResult<DerivedChanges> {
        let others = others.iter().filter(|place| !changed.contains(*place));
        let (devices, times): (Vec<_>, Vec<_>) = changed.iter().chain(others).copied().unzip();
        let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) else {
            return Ok(DerivedChanges::default());
        };
        let load = transaction.prepare_cached(&self.load).await?;
        let parameters: Parameters<'_, 4> = [&devices, &times, first, last];
        let rows = transaction.query(&load, &parameters).await?;
        Ok(changes(&rows, changed, readings))
    }

    /// Writes changed derived values, and what follows from them and from `measured`, which are the changed readings that
    /// are still stored: the newest readings of their series, their rollups, and that workers judge alarms again. Returns
    /// how many derived values were written, and how many removed.
    pub async fn write(
        &self,
        transaction: &Transaction<'_>,
        measured: &[Key<'_>],
        derived: &DerivedChanges,
    ) -> QueryResult<(u64, u64)> {
        let DerivedChanges { written, removed } = derived;
        let mut counts = (0, 0);
        if !written.is_empty() {
            let statement = transaction.prepare_cached(&self.write).await?;
            let (devices, metrics, times) = Key::columns(written.iter().map(|new| &new.key));
            let parameters: Parameters<'_, 9> = [
                &devices,
                &metrics,
                &times,
                &column(written, |new| new.value),
                &column(written, |new| new.unit),
                &column(written, |new| &*new.quality),
                &column(written, |new| new.stored_by.stored_at),
                &column(written, |new| &*new.stored_by.task_id),
                &column(written, |new| &*new.stored_by.worker),
            ];
            counts.0 = transaction.execute(&statement, &parameters).await?;
        }
        let (devices, metrics, times) = Key::columns(removed);
        if let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) {
            let statement = transaction.prepare_cached(&self.remove).await?;
            let parameters: Parameters<'_, 5> = [&devices, &metrics, &times, first, last];
            counts.1 = transaction.execute(&statement, &parameters).await?;
        }
        let changed: Vec<&Key<'_>> = measured.iter().chain(derived.keys()).collect();
        if !changed.is_empty() {
            self.refresh_series(transaction, &changed, removed).await?;
            request_judgement(transaction, &self.tables, &changed).await?;
        }
        Ok(counts)
    }

    /// Updates the series of changed readings. Their newest readings may be others, their rollups are to be computed again,
    /// and the state of alarm rules is no longer that of the readings.
    async fn refresh_series(
        &self,
        transaction: &Transaction<'_>,
        changed: &[&Key<'_>],
        removed: &[Key<'_>],
    ) -> QueryResult<()> {
        let mut stale: BTreeMap<(&str, &str), StaleHours> = BTreeMap::new();
        for Key { device, metric, time } in changed {
            stale.entry((device, metric)).or_default().extend([*time]);
        }
        let (touched, stale): (Vec<_>, Vec<_>) = stale.into_iter().unzip();
        let (devices, metrics): (Vec<_>, Vec<_>) = touched.into_iter().unzip();
        let (gone_devices, gone_metrics, gone_times) = Key::columns(removed);
        let statement = transaction.prepare_cached(&self.refresh_series).await?;
        let parameters: Parameters<'_, 5> = [&devices, &metrics, &gone_devices, &gone_metrics, &gone_times];
        transaction.execute(&statement, &parameters).await?;
        let statement = transaction.prepare_cached(&self.mark_stale).await?;
        transaction.execute(&statement, &[&devices, &metrics, &stale]).await?;
        if !removed.is_empty() {
            let statement = transaction.prepare_cached(&self.remove_series).await?;
            transaction.execute(&statement, &[&gone_devices, &gone_metrics]).await?;
        }
        Ok(())
    }

    /// Locks what [`derive`](Self::derive) and [`write`](Self::write) will, and series of measured values, in the order in which
    /// all who change readings do.
    pub async fn lock<'a>(
        &self,
        transaction: &Transaction<'_>,
        measured: impl Iterator<Item = (&'a str, &'a str)>,
        places: &BTreeSet<Place<'a>>,
    ) -> QueryResult<()> {
        let devices: BTreeSet<_> = places.iter().map(|(device, _)| *device).collect();
        let lock = transaction.prepare_cached(&self.lock).await?;
        transaction.execute(&lock, &[&devices.iter().collect::<Vec<_>>()]).await?;
        let derived =
            devices.into_iter().flat_map(|device| derive::metrics().map(move |metric| (device, metric)));
        let (devices, metrics): (Vec<_>, Vec<_>) = measured.chain(derived).unzip();
        let statement = transaction.prepare_cached(&self.lock_series).await?;
        transaction.execute(&statement, &[&devices, &metrics]).await.map(drop)
    }
}

/// Compares the derived values of rows with those that the measured ones of them give. Where neither a reading has changed
/// nor a value was derived, none is.
fn changes(rows: &[Row], changed: &BTreeSet<Place<'_>>, readings: &[Reading<'_>]) -> DerivedChanges {
    let changing: BTreeMap<_, _> = readings.iter().map(|reading| (&reading.key, reading)).collect();
    let mut inputs = Vec::new();
    let mut stored_by = Vec::new();
    let mut stored: BTreeMap<Key<'static>, &Row> = BTreeMap::new();
    for row in rows {
        let (device, metric, time): (&str, &str, OffsetDateTime) = (row.get(0), row.get(1), row.get(2));
        match row.get(5) {
            raw @ Some(_) => {
                // A flag of another program is a doubt.
                let (mut value, mut unit): (f64, Option<&str>) = (row.get(3), row.get(4));
                let mut quality: Vec<&str> = row.get(6);
                if let Some(reading) = changing.get(&Key::new(device, metric, time)) {
                    (value, unit) = (reading.value, reading.unit);
                    quality = reading.quality.iter().map(String::as_str).collect();
                }
                let Ok(quality) = quality.into_iter().map(Flag::from_str).collect() else { continue };
                inputs.push(CalibratedReading {
                    device: device.into(),
                    metric: metric.into(),
                    time: time.into(),
                    value,
                    unit: unit.and_then(Unit::get),
                    raw,
                    raw_unit: None,
                    sent_unit: None,
                    calibration: None,
                    quality,
                    counter: None,
                    sent_counter: None,
                });
                stored_by.push(StoredBy { stored_at: row.get(7), task_id: row.get(8), worker: row.get(9) });
            }
            None if derive::is_derived(metric) => {
                let (device, metric) = (device.to_owned().into(), metric.to_owned().into());
                stored.insert(Key { device, metric, time }, row);
            }
            None => {}
        }
    }
    let had_values: BTreeSet<Place<'_>> = stored.values().map(|row| (row.get(0), row.get(2))).collect();
    let mut changes = DerivedChanges::default();
    for Derived { value, temperature, humidity } in derive::values_with_inputs(&inputs) {
        let quality: Vec<&str> = value.quality.iter().map(Into::into).collect();
        let (device, metric) = (value.device.to_string().into(), value.metric.to_string().into());
        let new = NewValue {
            key: Key { device, metric, time: value.time.into() },
            value: value.value,
            unit: value.unit.map(Unit::symbol),
            quality: quality.join(","),
            stored_by: stored_by[temperature].clone().max(stored_by[humidity].clone()),
        };
        let place = (&*new.key.device, new.key.time);
        let is_wanted = changed.contains(&place) || had_values.contains(&place);
        let is_stored = stored
            .remove(&new.key)
            .is_some_and(|row| (new.value, new.unit, quality) == (row.get(3), row.get(4), row.get(6)));
        if is_wanted && !is_stored {
            changes.written.push(new);
        }
    }
    changes.removed = stored.into_keys().collect();
    changes
}

/// Adds a row for each series with changed readings. A worker whose rules apply to it judges these readings as if they had
/// just been stored, and deletes the row.
async fn request_judgement(
    transaction: &Transaction<'_>,
    tables: &Tables,
    changed: &[&Key<'_>],
) -> QueryResult<()> {
    let insert = format!(
        "INSERT INTO {tables}_rejudge (device, metric, times) SELECT device, metric, array_agg(DISTINCT time)
         FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS changed(device, metric, time) GROUP BY device, metric"
    );
    let statement = transaction.prepare_cached(&insert).await?;
    let (devices, metrics, times) = Key::columns(changed.iter().copied());
    transaction.execute(&statement, &[&devices, &metrics, &times]).await.map(drop)
}
