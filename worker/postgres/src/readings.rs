//! Stores the readings of a batch.
//!
//! A reading is unique by device, metric and time. It is identified by what the sensor sent, the raw value and its
//! unit: the same again changes nothing, whatever the calibration makes of it now, and another one is a conflict, or
//! another version ([`versions`](crate::versions)). A repetition that says more, the unit or when the counter was at zero,
//! completes what is stored, so that the order of arrival does not matter. A derived value (without a raw value) never conflicts, and a measured one
//! takes its place.

use std::collections::{BTreeSet, HashSet};

use deadpool_postgres::Transaction;
use garenne_database::{
    AnyColumn, Parameters, QueryResult, Tables, any_column, column, derived::Key, parameters,
};
use time::{OffsetDateTime, macros::datetime};
use tokio_postgres::Row;

use garenne_alarms::{ChangedReading, NewReading};

use crate::versions::{Replaced, VersionStatements, accepted_at_of, is_other_unit};
use garenne::sink::FinishedTask;
use garenne_sensors::reading::Flag;
use garenne_sensors::reading_row::{ReadingRow, ReadingRows};

/// How a reading is treated whose device, metric and time are stored with another value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnConflict {
    /// The task becomes a dead letter with reason `conflict`; the stored value stays.
    #[default]
    Dead,
    /// The latest version is stored.
    Replace,
}

/// Outcome of a batch's readings.
#[derive(Default)]
pub(super) struct StoredReadings<'a> {
    pub(super) changed: Vec<ChangedReading<'a>>,
    /// The index in the batch of each result with a reading that conflicts with a stored one, and the conflict.
    pub(super) conflicts: Vec<(usize, String)>,
    /// Readings of earlier batches that are stored again.
    pub(super) restored: Vec<Key<'a>>,
    /// Devices and times whose derived values may be others.
    pub(super) places: BTreeSet<(&'a str, OffsetDateTime)>,
    /// The readings whose senders say something of a counter, without those that conflict.
    pub(super) declaring: Vec<NewReading<'a>>,
}

/// The statements for a fleet's readings.
pub(super) struct ReadingStatements {
    on_conflict: OnConflict,
    store: String,
    store_derived: String,
    compare: String,
    versions: VersionStatements,
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
        let is_derived = format!("{table}.raw IS NULL");
        let is_repeated = format!("{table}.raw = excluded.raw");
        let completes = format!(
            "{is_repeated} AND NOT '{corrected}' = ANY({table}.quality)
             AND coalesce({table}.raw_unit = excluded.raw_unit, true)
             AND coalesce({table}.start_time = excluded.start_time, true)
             AND ({table}.raw_unit IS NULL AND excluded.raw_unit IS NOT NULL
                  OR {table}.start_time IS NULL AND excluded.start_time IS NOT NULL)"
        );
        let overrules = match on_conflict {
            OnConflict::Dead => format!("{is_derived} OR {completes}"),
            // The versions of a reading are resolved from all of them.
            OnConflict::Replace => is_derived.clone(),
        };
        // A repetition completes the stored reading, which stays that of its task.
        let keep = |condition: &str, name: &str| {
            format!(
                "{name} = CASE WHEN {is_repeated}{condition} THEN {table}.{name} ELSE excluded.{name} END"
            )
        };
        let has_unit = format!(" AND {table}.raw_unit IS NOT NULL");
        let of_unit =
            ["value", "unit", "raw_unit", "calibration", "quality"].map(|name| keep(&has_unit, name));
        let of_task = ["task_id", "worker", "accepted_at", "sequence"].map(|name| keep("", name));
        let set = [of_unit.join(", "), of_task.join(", ")].join(", ");
        let overrules_derived = match on_conflict {
            OnConflict::Dead => "false".to_owned(),
            OnConflict::Replace => format!("{is_derived} AND {table}.value <> excluded.value"),
        };
        // DISTINCT ON keeps one of several: an upsert cannot change a row twice. The order of the rows is that of the
        // locks.
        let insert = |further_types: &str, further_names: &str, condition: &str, overrules: &str| {
            format!(
                "INSERT INTO {table} (device, metric, time, value, unit, raw, raw_unit, calibration, quality, task_id,
                                     worker, accepted_at, sequence, start_time)
                 SELECT DISTINCT ON (device, metric, time) device, metric, time, value, unit, raw, raw_unit,
                        calibration, string_to_array(quality, ','), task_id, worker, accepted_at, sequence,
                        start_time
                 FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::float8[], $5::text[], $6::float8[],
                             $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::int4[], $13::timestamptz[],
                             $14::int4[], $15::timestamptz[]{further_types})
                      AS input(device, metric, time, value, unit, raw, raw_unit, calibration, quality, task_id, worker,
                               place, accepted_at, sequence, start_time{further_names})
                 {condition}
                 ORDER BY device, metric, time, place
                 ON CONFLICT (device, metric, time) DO UPDATE SET raw = excluded.raw, {set},
                     start_time = CASE WHEN {is_repeated} THEN coalesce({table}.start_time, excluded.start_time)
                                       ELSE excluded.start_time END,
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
            ", $16::text[], $17::float8[], $18::text[], $19::float8[]",
            ", first, first_value, second, second_value",
            &other_input,
            &overrules_derived,
        );
        let compare = format!(
            "SELECT DISTINCT place, device, metric, input.raw, input.raw_unit, stored.raw, stored.raw_unit
             FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::float8[], $5::text[], $6::int4[])
                  AS input(device, metric, time, raw, raw_unit, place)
             JOIN (SELECT device, metric, time, raw, raw_unit FROM {table}
                   UNION ALL
                   SELECT device, metric, time, raw, raw_unit FROM {tables}_corrections WHERE action = 'delete')
                  AS stored USING (device, metric, time)
             WHERE {differs}",
            differs = differs("input", "stored")
        );
        Self { on_conflict, store, store_derived, compare, versions: VersionStatements::new(tables) }
    }

    /// Stores the readings of a batch. Derived values are stored after measured ones: whether their inputs are stored
    /// as they were is known then.
    pub(super) async fn store<'a>(
        &self,
        transaction: &Transaction<'_>,
        batch: &'a [FinishedTask],
    ) -> QueryResult<StoredReadings<'a>> {
        let rows = batch.iter().enumerate().flat_map(|(index, finished)| {
            finished.output.rows().iter().map(move |row| (index, finished, row))
        });
        let (measured, derived): (Vec<NewReading<'a>>, Vec<_>) =
            rows.partition(|(.., row)| row.raw.is_some());
        let mut outcome = StoredReadings::default();
        if !measured.is_empty() {
            let statement = transaction.prepare_cached(&self.store).await?;
            let stored = transaction.query(&statement, &parameters(&columns(&measured), &[])).await?;
            let (changed, others) = split(&measured, &stored);
            outcome.changed = changed;
            let mut conflicting = BTreeSet::new();
            match self.on_conflict {
                _ if others.is_empty() => {}
                OnConflict::Dead => {
                    (outcome.conflicts, conflicting) = self.conflicts(transaction, &others).await?;
                }
                OnConflict::Replace => {
                    let Replaced { changed, restored, places } =
                        self.versions.store(transaction, &others).await?;
                    // A row of the batch may have replaced another one of it.
                    let replacing: HashSet<_> = changed.iter().map(|it| key(it.row)).collect();
                    outcome.changed.retain(|it| !replacing.contains(&key(it.row)));
                    outcome.changed.extend(changed);
                    (outcome.restored, outcome.places) = (restored, places);
                }
            }
            let declares = |(index, _, row): &NewReading<'_>| {
                row.sent_counter.is_some() && !conflicting.contains(&(*index, key(row)))
            };
            outcome.declaring = measured.iter().copied().filter(declares).collect();
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
            let statement = transaction.prepare_cached(&self.store_derived).await?;
            let stored = transaction.query(&statement, &parameters(&columns(&derived), &further)).await?;
            outcome.changed.extend(split(&derived, &stored).0);
        }
        Ok(outcome)
    }

    /// The index in the batch of each result with a reading that is stored with another raw value, or was until a person
    /// deleted it; and those readings.
    async fn conflicts<'a>(
        &self,
        transaction: &Transaction<'_>,
        rows: &[NewReading<'a>],
    ) -> QueryResult<(Vec<(usize, String)>, BTreeSet<(usize, ReadingKey<'a>)>)> {
        let statement = transaction.prepare_cached(&self.compare).await?;
        let parameters: Parameters<'_, 6> = [
            &column(rows, |(.., row)| &*row.device),
            &column(rows, |(.., row)| &*row.metric),
            &column(rows, |(.., row)| row.time),
            &column(rows, |(.., row)| row.raw),
            &column(rows, |(.., row)| row.raw_unit),
            &places(rows),
        ];
        let found = transaction.query(&statement, &parameters).await?;
        let conflict = |found: &Row| {
            let (index, _, row) = &rows[index_of(found)];
            Some(((*index, conflict(found)?), (*index, key(row))))
        };
        Ok(found.iter().filter_map(conflict).unzip())
    }
}

/// The readings of the rows that were written to the table, and the others. Of several for the same row the first is written.
fn split<'a>(rows: &[NewReading<'a>], written: &[Row]) -> (Vec<ChangedReading<'a>>, Vec<NewReading<'a>>) {
    if written.len() == rows.len() {
        return (rows.iter().map(ChangedReading::new).collect(), Vec::new());
    }
    let mut written: HashSet<_> =
        written.iter().map(|row| (row.get(0), row.get(1), micros(row.get(2)))).collect();
    let (first, others): (Vec<_>, Vec<_>) = rows.iter().partition(|(.., row)| written.remove(&key(row)));
    (first.iter().map(ChangedReading::new).collect(), others)
}

/// The columns of readings, in the order of the parameters of the statements that store them.
fn columns<'a>(rows: &'a [NewReading<'_>]) -> [AnyColumn<'a>; 15] {
    [
        any_column(rows, |(.., row)| &*row.device),
        any_column(rows, |(.., row)| &*row.metric),
        any_column(rows, |(.., row)| row.time),
        any_column(rows, |(.., row)| row.value),
        any_column(rows, |(.., row)| row.unit),
        any_column(rows, |(.., row)| row.raw),
        any_column(rows, |(.., row)| row.raw_unit),
        any_column(rows, |(.., row)| row.calibration.as_deref()),
        any_column(rows, |(.., row)| row.quality.join(",")),
        any_column(rows, |(_, finished, _)| finished.envelope.id.as_str()),
        any_column(rows, |(_, finished, _)| &*finished.worker),
        Box::new(places(rows)),
        any_column(rows, |(_, finished, _)| accepted_at_of(finished).0),
        any_column(rows, |(_, finished, _)| accepted_at_of(finished).1),
        any_column(rows, |(.., row)| Some(OffsetDateTime::from(row.sent_counter?.start?))),
    ]
}

/// The index of each row.
fn places(rows: &[NewReading<'_>]) -> Vec<i32> {
    (0..).take(rows.len()).collect()
}

/// The time as Postgres stores it: two readings with the same one are the same.
fn micros(time: OffsetDateTime) -> i128 {
    (time - datetime!(2000-01-01 0:00 UTC)).whole_microseconds()
}

/// What identifies a reading in the table: device, metric and time.
type ReadingKey<'a> = (&'a str, &'a str, i128);

fn key(row: &ReadingRow) -> ReadingKey<'_> {
    (&row.device, &row.metric, micros(row.time))
}

fn index_of(row: &Row) -> usize {
    usize::try_from(row.get::<_, i32>(0)).expect("an index of the rows")
}

/// A conflict, for people. None if only the spelling of the unit differs.
fn conflict(row: &Row) -> Option<String> {
    let (device, metric): (&str, &str) = (row.get(1), row.get(2));
    let (received, received_unit): (f64, Option<&str>) = (row.get(3), row.get(4));
    let (stored, stored_unit): (f64, Option<&str>) = (row.get(5), row.get(6));
    let units = stored_unit.zip(received_unit).filter(|(one, other)| is_other_unit(one, other));
    let (stored, received) = match units {
        Some((one, other)) => (format!("{stored} {one}"), format!("{received} {other}")),
        None if stored == received => return None,
        None => (stored.to_string(), received.to_string()),
    };
    Some(format!("conflicting value for {device} {metric}: stored {stored}, received {received}"))
}
