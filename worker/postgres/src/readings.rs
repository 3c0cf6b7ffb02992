//! Stores the readings of a batch.
//!
//! A reading is unique by device, metric and time. It is identified by what the sensor sent, the raw value and its
//! unit: the same again changes nothing, whatever the calibration makes of it now, and another one is a conflict. A
//! derived value (without a raw value) never conflicts, and a measured one takes its place.

use std::collections::HashMap;

use deadpool_postgres::Transaction;
use garenne_database::{QueryResult, Tables};
use time::{OffsetDateTime, macros::datetime};
use tokio_postgres::Row;

use crate::{
    changed_reading::ChangedReading,
    columns::{Parameters, column},
};
use garenne::{handler::ReadingRow, sink::FinishedTask};
use garenne_sensors::reading::Flag;

/// How a reading is treated whose device, metric and time are stored with another value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnConflict {
    /// The task becomes a dead letter with reason `conflict`; the stored value stays.
    #[default]
    Dead,
    /// The new value replaces the stored one.
    Replace,
}

/// Outcome of a batch's readings.
#[derive(Default)]
pub(super) struct StoredReadings<'a> {
    pub(super) changed: Vec<ChangedReading<'a>>,
    /// The index in the batch of each result with a reading that conflicts with a stored one, and the conflict.
    pub(super) conflicts: Vec<(usize, String)>,
}

/// A reading of a batch: the index of its result, the result, and the reading.
type NewReading<'a> = (i32, &'a FinishedTask, &'a ReadingRow);

/// The statements for a fleet's readings.
pub(super) struct ReadingStatements {
    on_conflict: OnConflict,
    store: String,
    store_derived: String,
    compare: String,
}

impl ReadingStatements {
    pub(super) fn new(tables: &Tables, on_conflict: OnConflict) -> Self {
        let table = format!("{tables}_readings");
        // Another unit is another reading, except where one of the two is not known.
        let differs = |new: &str, stored: &str| {
            format!("({stored}.raw <> {new}.raw OR {stored}.raw_unit <> {new}.raw_unit)")
        };
        // What a person has corrected or deleted stays so.
        let corrected: &str = Flag::Corrected.into();
        let deleted = |metrics: &str| {
            format!(
                "NOT EXISTS (SELECT FROM {tables}_corrections AS gone WHERE gone.device = input.device
                             AND gone.time = input.time AND gone.metric IN ({metrics}) AND gone.action = 'delete')"
            )
        };
        let (overrules, overrules_derived, order) = match on_conflict {
            OnConflict::Dead => (format!("{table}.raw IS NULL"), "false".to_owned(), "ASC"),
            OnConflict::Replace => (
                format!(
                    "({table}.raw IS NULL OR {}) AND NOT '{corrected}' = ANY({table}.quality)",
                    differs("excluded", &table)
                ),
                format!("{table}.raw IS NULL AND {table}.value <> excluded.value"),
                "DESC",
            ),
        };
        // DISTINCT ON keeps one of several: an upsert cannot change a row twice. The order of the rows is that of the
        // locks.
        let insert = |further_types: &str, further_names: &str, condition: &str, overrules: &str| {
            format!(
                "INSERT INTO {table} (device, metric, time, value, unit, raw, raw_unit, calibration, quality, task_id,
                                     worker)
                 SELECT DISTINCT ON (device, metric, time) device, metric, time, value, unit, raw, raw_unit,
                        calibration, string_to_array(quality, ','), task_id, worker
                 FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::float8[], $5::text[], $6::float8[],
                             $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::int4[]{further_types})
                      AS input(device, metric, time, value, unit, raw, raw_unit, calibration, quality, task_id, worker,
                               place{further_names})
                 {condition}
                 ORDER BY device, metric, time, place {order}
                 ON CONFLICT (device, metric, time) DO UPDATE SET value = excluded.value, unit = excluded.unit,
                     raw = excluded.raw, raw_unit = excluded.raw_unit, calibration = excluded.calibration,
                     quality = excluded.quality, task_id = excluded.task_id, worker = excluded.worker,
                     stored_at = now() WHERE {overrules}
                 RETURNING device, metric, time"
            )
        };
        let store = insert("", "", &format!("WHERE {}", deleted("input.metric")), &overrules);
        let other_input = format!(
            "WHERE NOT EXISTS (
                 SELECT FROM {table} AS stored WHERE stored.device = input.device AND stored.time = input.time
                 AND (stored.metric = first AND stored.value <> first_value
                      OR stored.metric = second AND stored.value <> second_value
                      OR '{corrected}' = ANY(stored.quality))
                 AND stored.metric IN (first, second))
             AND {}",
            deleted("first, second")
        );
        let store_derived = insert(
            ", $13::text[], $14::float8[], $15::text[], $16::float8[]",
            ", first, first_value, second, second_value",
            &other_input,
            &overrules_derived,
        );
        let compare = format!(
            "SELECT place, device, metric, input.raw, input.raw_unit, stored.raw, stored.raw_unit
             FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::float8[], $5::text[], $6::int4[])
                  AS input(device, metric, time, raw, raw_unit, place)
             JOIN {table} AS stored USING (device, metric, time)
             WHERE {differs}",
            differs = differs("input", "stored")
        );
        Self { on_conflict, store, store_derived, compare }
    }

    /// Stores the readings of a batch. Derived values are stored after measured ones: whether their inputs are stored
    /// as they were is known then.
    pub(super) async fn store<'a>(
        &self,
        transaction: &Transaction<'_>,
        batch: &'a [FinishedTask],
    ) -> QueryResult<StoredReadings<'a>> {
        let rows = batch
            .iter()
            .zip(0..)
            .flat_map(|(finished, index)| finished.output.rows.iter().map(move |row| (index, finished, row)));
        let (measured, derived): (Vec<NewReading<'a>>, Vec<_>) =
            rows.partition(|(.., row)| row.raw.is_some());
        let mut outcome = StoredReadings::default();
        if !measured.is_empty() {
            let statement = transaction.prepare_cached(&self.store).await?;
            let stored = transaction.query(&statement, &Columns::of(&measured).parameters()).await?;
            outcome.changed = self.changed(&measured, &stored);
            if self.on_conflict == OnConflict::Dead && stored.len() < measured.len() {
                outcome.conflicts = self.conflicts(transaction, &measured).await?;
            }
        }
        if !derived.is_empty() {
            let inputs = |index: usize| {
                column(&derived, move |(.., row)| row.derived_from.as_ref().map(|from| &from[index]))
            };
            let [first, second] = [inputs(0), inputs(1)];
            let further: Parameters<'_, 4> = [
                &column(&first, |input| input.map(|(metric, _)| &**metric)),
                &column(&first, |input| input.map(|(_, value)| *value)),
                &column(&second, |input| input.map(|(metric, _)| &**metric)),
                &column(&second, |input| input.map(|(_, value)| *value)),
            ];
            let columns = Columns::of(&derived);
            let parameters = [&columns.parameters()[..], &further].concat();
            let statement = transaction.prepare_cached(&self.store_derived).await?;
            let stored = transaction.query(&statement, &parameters).await?;
            outcome.changed.extend(self.changed(&derived, &stored));
        }
        Ok(outcome)
    }

    /// The index in the batch of each result with a reading that is stored with another raw value.
    async fn conflicts(
        &self,
        transaction: &Transaction<'_>,
        rows: &[NewReading<'_>],
    ) -> QueryResult<Vec<(usize, String)>> {
        let Columns { device, metric, time, raw, raw_unit, place, .. } = &Columns::of(rows);
        let statement = transaction.prepare_cached(&self.compare).await?;
        let parameters: Parameters<'_, 6> = [device, metric, time, raw, raw_unit, place];
        Ok(transaction.query(&statement, &parameters).await?.iter().map(conflict).collect())
    }

    /// The readings of the rows that changed in the table.
    fn changed<'a>(&self, rows: &[NewReading<'a>], stored: &[Row]) -> Vec<ChangedReading<'a>> {
        let reading = |(index, _, row): &NewReading<'a>| ChangedReading {
            result: usize::try_from(*index).expect("an index in the batch"),
            row,
        };
        if stored.len() == rows.len() {
            return rows.iter().map(reading).collect();
        }
        // Of several for the same row the one that `DISTINCT ON` has kept.
        let mut by_key: HashMap<_, &NewReading<'a>> = HashMap::with_capacity(rows.len());
        for new in rows {
            let (.., row) = new;
            let kept = by_key.entry((&*row.device, &*row.metric, micros(row.time))).or_insert(new);
            if self.on_conflict == OnConflict::Replace {
                *kept = new;
            }
        }
        let key =
            |row: &'_ Row| by_key.get(&(row.get(0), row.get(1), micros(row.get(2)))).copied().map(reading);
        stored.iter().filter_map(key).collect()
    }
}

/// The columns of readings.
struct Columns<'a> {
    device: Vec<&'a str>,
    metric: Vec<&'a str>,
    time: Vec<OffsetDateTime>,
    value: Vec<f64>,
    unit: Vec<Option<&'a str>>,
    raw: Vec<Option<f64>>,
    raw_unit: Vec<Option<&'a str>>,
    calibration: Vec<Option<&'a str>>,
    quality: Vec<String>,
    task_id: Vec<&'a str>,
    worker: Vec<&'a str>,
    place: Vec<i32>,
}

impl<'a> Columns<'a> {
    fn of(rows: &[NewReading<'a>]) -> Self {
        Self {
            device: column(rows, |(.., row)| &*row.device),
            metric: column(rows, |(.., row)| &*row.metric),
            time: column(rows, |(.., row)| row.time),
            value: column(rows, |(.., row)| row.value),
            unit: column(rows, |(.., row)| row.unit),
            raw: column(rows, |(.., row)| row.raw),
            raw_unit: column(rows, |(.., row)| row.raw_unit),
            calibration: column(rows, |(.., row)| row.calibration.as_deref()),
            quality: column(rows, |(.., row)| row.quality.join(",")),
            task_id: column(rows, |(_, finished, _)| finished.envelope.id.as_str()),
            worker: column(rows, |(_, finished, _)| &*finished.worker),
            place: column(rows, |(index, ..)| *index),
        }
    }

    fn parameters(&self) -> Parameters<'_, 12> {
        [
            &self.device,
            &self.metric,
            &self.time,
            &self.value,
            &self.unit,
            &self.raw,
            &self.raw_unit,
            &self.calibration,
            &self.quality,
            &self.task_id,
            &self.worker,
            &self.place,
        ]
    }
}

/// The time as Postgres stores it: two readings with the same one are the same.
fn micros(time: OffsetDateTime) -> i128 {
    (time - datetime!(2000-01-01 0:00 UTC)).whole_microseconds()
}

/// The index in the batch of a result with a conflict, and the conflict.
fn conflict(row: &Row) -> (usize, String) {
    let (index, device, metric): (i32, &str, &str) = (row.get(0), row.get(1), row.get(2));
    let (received, received_unit): (f64, Option<&str>) = (row.get(3), row.get(4));
    let (stored, stored_unit): (f64, Option<&str>) = (row.get(5), row.get(6));
    let (mut stored, mut received) = (stored.to_string(), received.to_string());
    if let (Some(one), Some(other)) = (stored_unit, received_unit)
        && one != other
    {
        stored = format!("{stored} {one}");
        received = format!("{received} {other}");
    }
    let detail = format!("conflicting value for {device} {metric}: stored {stored}, received {received}");
    (usize::try_from(index).expect("an index in the batch"), detail)
}
