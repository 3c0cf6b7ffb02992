//! Which version of a reading is stored, if tasks with several ids have sent it (`on_conflict = "replace"`).
//!
//! The latest is stored, by the order of [`Version`](garenne_protocol::task::Version) and then of the ids. An id counts with
//! the earliest version that it arrived with, so that a repeated task undoes nothing. Which one is the latest may change with
//! any task that arrives, so all of them are kept, and the result is the same in every order of arrival.

use std::collections::{BTreeMap, BTreeSet};

use deadpool_postgres::Transaction;
use garenne::sink::FinishedTask;
use garenne_database::{
    AnyColumn, Parameters, QueryResult, Tables, any_column, column, derived::Key, parameters,
};
use garenne_protocol::sensor::Unit;
use garenne_sensors::reading::{Flag, is_input_unit};
use time::OffsetDateTime;
use tokio_postgres::Row;

use garenne_alarms::{ChangedReading, NewReading};

#[derive(Clone, Debug, PartialEq)]
struct ReadingVersion {
    /// When its task was accepted. None before there were versions, which is earlier than all others.
    accepted: Option<(OffsetDateTime, i32)>,
    task_id: String,
    value: f64,
    unit: Option<String>,
    raw: f64,
    raw_unit: Option<String>,
    calibration: Option<String>,
    /// The flags, separated by commas.
    quality: String,
    worker: String,
    /// When the counter was at zero, if the sender said so.
    start_time: Option<OffsetDateTime>,
}

/// The versions of a reading after some have arrived.
#[derive(Debug, Default, PartialEq)]
struct Resolved {
    /// The latest, if it is not stored as it is.
    latest: Option<ReadingVersion>,
    /// Those that are to be kept, or kept in another form.
    kept: Vec<ReadingVersion>,
}

/// What a batch has replaced.
#[derive(Default)]
pub(super) struct Replaced<'a> {
    /// The readings of the batch that have replaced others.
    pub(super) changed: Vec<ChangedReading<'a>>,
    /// Readings of earlier batches that are stored again.
    pub(super) restored: Vec<Key<'a>>,
    /// Devices and times whose derived values may be others.
    pub(super) places: BTreeSet<(&'a str, OffsetDateTime)>,
}

/// The statements for the versions of a fleet's readings.
pub(super) struct VersionStatements {
    load: String,
    update: String,
    keep: String,
}

impl VersionStatements {
    pub(super) fn new(tables: &Tables) -> Self {
        let corrected: &str = Flag::Corrected.into();
        let columns = "task_id, accepted_at, sequence, value, unit, raw, raw_unit, calibration, quality, worker, start_time";
        let input = "unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::timestamptz[], $6::int4[],
                     $7::float8[], $8::text[], $9::float8[], $10::text[], $11::text[], $12::text[], $13::text[],
                     $14::timestamptz[])
                     AS new(device, metric, time, task_id, accepted_at, sequence, value, unit, raw, raw_unit,
                            calibration, quality, worker, start_time)";
        let is_key = "v.device = key.device AND v.metric = key.metric AND v.time = key.time";
        let load = format!(
            "SELECT key.device, key.metric, key.time, known.*
             FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS key(device, metric, time) CROSS JOIN LATERAL (
                 SELECT true, {columns} FROM {tables}_readings AS v
                 WHERE {is_key} AND raw IS NOT NULL AND NOT '{corrected}' = ANY(quality)
                 UNION ALL SELECT false, {columns} FROM {tables}_versions AS v WHERE {is_key}) AS known"
        );
        let set = |to: &str, quality: &str| {
            let names = [
                "accepted_at",
                "sequence",
                "value",
                "unit",
                "raw",
                "raw_unit",
                "calibration",
                "worker",
                "start_time",
            ];
            let set: Vec<_> = names.iter().map(|name| format!("{name} = {to}.{name}")).collect();
            format!("{}, quality = {quality}", set.join(", "))
        };
        let flags = "string_to_array(new.quality, ',')";
        let update = format!(
            "UPDATE {tables}_readings AS v SET {}, task_id = new.task_id, stored_at = now() FROM {input}
             WHERE v.device = new.device AND v.metric = new.metric AND v.time = new.time AND v.time BETWEEN $15 AND $16",
            set("new", flags)
        );
        let keep = format!(
            "INSERT INTO {tables}_versions (device, metric, time, {columns})
             SELECT device, metric, time, {} FROM {input}
             ON CONFLICT (device, metric, time, task_id) DO UPDATE SET {}",
            columns.replace("quality", flags),
            set("excluded", "excluded.quality")
        );
        Self { load, update, keep }
    }

    /// Stores the latest versions of readings whose rows exist and are locked by this transaction. `arrived` are the readings
    /// of the batch that are not stored yet, in their order.
    pub(super) async fn store<'a>(
        &self,
        transaction: &Transaction<'_>,
        arrived: &[NewReading<'a>],
    ) -> QueryResult<Replaced<'a>> {
        let mut by_key: BTreeMap<(&str, &str, OffsetDateTime), Vec<NewReading<'a>>> = BTreeMap::new();
        for new @ (.., row) in arrived {
            by_key.entry((&row.device, &row.metric, to_micros(row.time))).or_default().push(*new);
        }
        let keys: Vec<_> = by_key.keys().copied().collect();
        let load = transaction.prepare_cached(&self.load).await?;
        let key_columns: Parameters<'_, 3> = [
            &column(&keys, |(device, ..)| *device),
            &column(&keys, |(_, metric, _)| *metric),
            &column(&keys, |(.., time)| *time),
        ];
        let mut known: BTreeMap<_, (Option<ReadingVersion>, Vec<ReadingVersion>)> = BTreeMap::new();
        let rows = transaction.query(&load, &key_columns).await?;
        for row in &rows {
            let (device, metric, time): (&str, &str, OffsetDateTime) = (row.get(0), row.get(1), row.get(2));
            let (stored, kept) = known.entry((device, metric, time)).or_default();
            if row.get(3) {
                *stored = Some(ReadingVersion::stored(row));
            } else {
                kept.push(ReadingVersion::stored(row));
            }
        }
        let (mut replaced, mut latest, mut kept) = (Replaced::default(), Vec::new(), Vec::new());
        for (key, arrived) in by_key {
            // What a person has corrected or deleted stays so.
            let Some((Some(stored), known)) = known.remove(&key) else { continue };
            let versions = arrived.iter().map(ReadingVersion::arrived);
            let (device, metric, time) = key;
            let differing = arrived.iter().map(ReadingVersion::arrived).find(|new| new.differs(&stored));
            // Also for an earlier version: what its task derived from it, or could not, follows from the stored one.
            if differing.is_some_and(|new| is_input(&new) || is_input(&stored)) {
                replaced.places.insert((device, time));
            }
            let resolved = resolve(&stored, known, versions);
            kept.extend(resolved.kept.into_iter().map(|version| (key, version)));
            let Some(version) = resolved.latest else { continue };
            if version.is_other(&stored) {
                if is_input(&version) || is_input(&stored) {
                    replaced.places.insert((device, time));
                }
                // The last of a task's records for the same reading.
                let new = arrived.iter().rfind(|new| !version.is_other(&ReadingVersion::arrived(new)));
                match new {
                    Some(new) => replaced.changed.push(ChangedReading::new(new)),
                    None => replaced.restored.push(Key::new(device, metric, time)),
                }
            }
            latest.push((key, version));
        }
        if let (Some(first), Some(last)) =
            (latest.iter().map(|((.., time), _)| time).min(), latest.iter().map(|((.., time), _)| time).max())
        {
            let update = transaction.prepare_cached(&self.update).await?;
            transaction.execute(&update, &parameters(&columns(&latest), &[first, last])).await?;
        }
        if !kept.is_empty() {
            let keep = transaction.prepare_cached(&self.keep).await?;
            transaction.execute(&keep, &parameters(&columns(&kept), &[])).await?;
        }
        Ok(replaced)
    }
}

/// Adds versions that have arrived to those that are known.
fn resolve(
    stored: &ReadingVersion,
    kept: Vec<ReadingVersion>,
    arrived: impl Iterator<Item = ReadingVersion>,
) -> Resolved {
    let is_kept: BTreeSet<_> = kept.iter().map(|version| version.task_id.clone()).collect();
    let mut changed = BTreeSet::new();
    let mut versions: BTreeMap<_, _> =
        kept.into_iter().map(|version| (version.task_id.clone(), version)).collect();
    // What is stored may have been completed by another version; what its own task sent is kept then.
    match versions.get_mut(&stored.task_id) {
        Some(sent) if sent.lacks_what(stored) => sent.accepted = stored.accepted,
        _ => drop(versions.insert(stored.task_id.clone(), stored.clone())),
    }
    for new in arrived {
        let known = versions.entry(new.task_id.clone()).or_insert_with(|| new.clone());
        if new.accepted == known.accepted && !new.differs(known) || new.accepted > known.accepted {
            continue;
        }
        changed.insert(new.task_id.clone());
        // What a recalibration made of the same value stays.
        *known =
            if new.differs(known) { new } else { ReadingVersion { accepted: new.accepted, ..known.clone() } };
    }
    let latest = completed(versions.values()).map(|latest| match latest.is_other(stored) {
        true => latest,
        // What a recalibration made of the stored value stays.
        false => ReadingVersion { accepted: latest.accepted, task_id: latest.task_id, ..stored.clone() },
    });
    let latest = latest.filter(|latest| latest != stored);
    let has_several = versions.len() > 1;
    let is_new = |version: &ReadingVersion| {
        has_several && (changed.contains(&version.task_id) || !is_kept.contains(&version.task_id))
    };
    Resolved { latest, kept: versions.into_values().filter(is_new).collect() }
}

/// The latest version. Where it does not say its unit, or when its counter was at zero, the latest repetition that does
/// completes it.
fn completed<'v>(versions: impl Iterator<Item = &'v ReadingVersion>) -> Option<ReadingVersion> {
    let mut versions: Vec<_> = versions.collect();
    versions.sort_by_key(|version| std::cmp::Reverse((version.accepted, &*version.task_id)));
    let (latest, earlier) = versions.split_first()?;
    let mut completed = ReadingVersion::clone(latest);
    for repeated in earlier.iter().filter(|version| !version.differs(latest)) {
        if completed.raw_unit.is_none() && repeated.raw_unit.is_some() && !repeated.differs(&completed) {
            let ReadingVersion { accepted, task_id, worker, start_time, .. } = completed;
            completed =
                ReadingVersion { accepted, task_id, worker, start_time, ..ReadingVersion::clone(repeated) };
        }
        if completed.start_time.is_none() && !repeated.differs(&completed) {
            completed.start_time = repeated.start_time;
        }
    }
    Some(completed)
}

impl ReadingVersion {
    fn arrived(&(_, finished, row): &NewReading<'_>) -> Self {
        Self {
            accepted: Some(accepted_at_of(finished)),
            task_id: finished.envelope.id.as_str().to_owned(),
            value: row.value,
            unit: row.unit.map(str::to_owned),
            raw: row.raw.unwrap_or(row.value),
            raw_unit: row.raw_unit.map(str::to_owned),
            calibration: row.calibration.as_deref().map(str::to_owned),
            quality: row.quality.join(","),
            worker: finished.worker.to_string(),
            start_time: row.sent_counter.and_then(|sent| sent.start).map(|start| to_micros(start.into())),
        }
    }

    /// After the key and whether it is stored.
    fn stored(row: &Row) -> Self {
        let at: Option<OffsetDateTime> = row.get(5);
        Self {
            accepted: at.zip(row.get(6)),
            task_id: row.get(4),
            value: row.get(7),
            unit: row.get(8),
            raw: row.get(9),
            raw_unit: row.get(10),
            calibration: row.get(11),
            quality: row.get::<_, Vec<&str>>(12).join(","),
            worker: row.get(13),
            start_time: row.get(14),
        }
    }

    /// Whether it does not say its unit or its counter's start, and the other one does.
    fn lacks_what(&self, other: &Self) -> bool {
        self.raw_unit.is_none() && other.raw_unit.is_some()
            || self.start_time.is_none() && other.start_time.is_some()
    }

    /// Whether it is another reading, or says more or less of the same one.
    fn is_other(&self, other: &Self) -> bool {
        self.differs(other) || self.lacks_what(other) || other.lacks_what(self)
    }

    /// Whether it is another reading: the raw value, or its unit or its counter's start if both are known.
    fn differs(&self, other: &Self) -> bool {
        let units = self.raw_unit.as_ref().zip(other.raw_unit.as_ref());
        let starts = self.start_time.zip(other.start_time);
        self.raw != other.raw
            || units.is_some_and(|(one, other)| is_other_unit(one, other))
            || starts.is_some_and(|(one, other)| one != other)
    }
}

/// Whether two symbols are of different units. Earlier versions stored other spellings of a symbol, such as `°C`.
pub(super) fn is_other_unit(one: &str, other: &str) -> bool {
    one != other && Unit::get(one).is_none_or(|unit| Unit::get(other) != Some(unit))
}

/// When the task of a reading was accepted, as the table has it.
pub(super) fn accepted_at_of(finished: &FinishedTask) -> (OffsetDateTime, i32) {
    let (micros, sequence) = finished.envelope.version.parts();
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000);
    (at.expect("a version is at most a day ahead of the clock"), sequence)
}

fn is_input(version: &ReadingVersion) -> bool {
    version.unit.as_deref().and_then(Unit::get).is_some_and(is_input_unit)
}

/// The time as Postgres stores it.
fn to_micros(time: OffsetDateTime) -> OffsetDateTime {
    time.replace_nanosecond(time.microsecond() * 1000).expect("fewer nanoseconds than before")
}

/// The columns of versions, in the order of the parameters of the statements that store them.
fn columns<'a>(rows: &'a [((&str, &str, OffsetDateTime), ReadingVersion)]) -> [AnyColumn<'a>; 14] {
    [
        any_column(rows, |((device, ..), _)| *device),
        any_column(rows, |((_, metric, _), _)| *metric),
        any_column(rows, |((.., time), _)| *time),
        any_column(rows, |(_, version)| &*version.task_id),
        any_column(rows, |(_, version)| version.accepted.map(|(at, _)| at)),
        any_column(rows, |(_, version)| version.accepted.map(|(_, sequence)| sequence)),
        any_column(rows, |(_, version)| version.value),
        any_column(rows, |(_, version)| version.unit.as_deref()),
        any_column(rows, |(_, version)| version.raw),
        any_column(rows, |(_, version)| version.raw_unit.as_deref()),
        any_column(rows, |(_, version)| version.calibration.as_deref()),
        any_column(rows, |(_, version)| &*version.quality),
        any_column(rows, |(_, version)| &*version.worker),
        any_column(rows, |(_, version)| version.start_time),
    ]
}

#[cfg(test)]
mod tests;
