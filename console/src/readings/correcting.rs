//! Corrects the selected readings, and keeps each one as it was.
//!
//! One transaction corrects all of them, so that a failed command has done nothing and can be repeated.

use std::time::Duration;

use deadpool_postgres::Transaction;
use garenne_common::{
    backoff::Backoff,
    exit::{Exit, Failure},
};
use garenne_database::{
    Connection, DatabaseError, ErrorKind, PostgresPool, QueryResult, Tables, column,
    derived::{DerivedValues, Key},
};
use garenne_operator::table::grouped;
use garenne_readings::{Calibration, Flag};
use serde::Serialize;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};
use tokio_postgres::types::ToSql;

use super::{
    correction::Correction,
    page::{Change, PAGE, places},
    row::Row,
    selection::{Selection, Series},
};

/// Readings that one command corrects, at most: they are locked until all are corrected.
const MAX_READINGS: u64 = 100_000;
/// Time limit for the transaction. A thousand readings take some hundred milliseconds.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long it is tried again while the database is away, or has aborted it because of another one.
const RETRY_LIMIT: Duration = Duration::from_secs(60);

/// Corrects readings of a fleet.
pub(super) struct Correcting {
    pub(super) pool: PostgresPool,
    pub(super) tables: Tables,
    pub(super) selection: Selection,
    pub(super) correction: Correction,
    /// Says which of the new values are flagged.
    pub(super) calibration: Calibration,
    /// Identifies the command in the table of corrections.
    pub(super) command: String,
    /// Why, as the table of corrections keeps it.
    pub(super) reason: String,
    pub(super) by: String,
    pub(super) dry_run: bool,
}

/// The counts of a correction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Corrected {
    pub(super) dry_run: bool,
    /// Measured readings in the range.
    pub(super) read: u64,
    pub(super) corrected: u64,
    /// Readings that are so already.
    pub(super) unchanged: u64,
    /// Derived values in the range, which follow from what they are derived from.
    pub(super) skipped_derived: u64,
    pub(super) derived_written: u64,
    pub(super) derived_removed: u64,
}

/// Why nothing was corrected.
enum Problem {
    Database(DatabaseError),
    /// The command must be another one.
    Refused(String),
}

impl Correcting {
    /// Corrects the readings. If it fails, nothing was corrected.
    pub(super) async fn run(&self) -> Result<Corrected, Failure> {
        let until = Instant::now() + RETRY_LIMIT;
        let mut backoff = Backoff::default();
        let address = self.pool.address();
        loop {
            let error = match self.transaction().await {
                Ok(counts) => return Ok(counts),
                Err(Problem::Refused(problem)) => return Err(Failure::new(Exit::Usage, problem)),
                Err(Problem::Database(error)) => error,
            };
            let wait = backoff.next_wait();
            if error.kind != ErrorKind::Transient || Instant::now() + wait >= until {
                return Err(Failure::new(Exit::Failed, format_args!("Postgres at {address}: {error}")));
            }
            tracing::warn!(%error, retry_in = ?wait, "correction failed, retrying");
            sleep(wait).await;
        }
    }

    async fn transaction(&self) -> Result<Corrected, Problem> {
        let series = async |client: &mut Connection| self.selection.series(client, &self.tables).await;
        let (series, _) = self.pool.within(TIMEOUT, series).await.map_err(Problem::Database)?;
        let done = async |client: &mut Connection| {
            let transaction = client.transaction().await?;
            let mut counts = Corrected { dry_run: self.dry_run, ..Corrected::default() };
            for series in &series {
                if let Err(problem) = self.series(&transaction, series, &mut counts).await? {
                    return Ok(Err(problem));
                }
            }
            if !self.dry_run {
                transaction.commit().await?;
            }
            Ok(Ok(counts))
        };
        self.pool.within(TIMEOUT, done).await.map_err(Problem::Database)?.map_err(Problem::Refused)
    }

    /// Corrects a series. The inner error is a text for the person.
    async fn series(
        &self,
        transaction: &Transaction<'_>,
        series: &Series,
        counts: &mut Corrected,
    ) -> QueryResult<Result<(), String>> {
        let statements = Statements::new(&self.tables);
        let derived = DerivedValues::new(&self.tables);
        let mut after = Some(self.selection.after);
        while let Some(begin) = after {
            let rows = statements.load(transaction, series, begin, self.selection.last, self.dry_run).await?;
            after = (rows.len() as i64 == PAGE).then(|| rows.last().map(|(time, _)| *time)).flatten();
            let measured: Vec<_> = rows
                .into_iter()
                .filter_map(|(_, row)| {
                    row.or_else(|| {
                        counts.skipped_derived += 1;
                        None
                    })
                })
                .collect();
            counts.read += measured.len() as u64;
            if counts.read > MAX_READINGS {
                let most = grouped(MAX_READINGS);
                return Ok(Err(format!(
                    "the range has more than {most} readings: correct a shorter one, or fewer devices"
                )));
            }
            let mut changes = Vec::new();
            for before in measured {
                match self.correction.apply(series, &self.calibration, &before) {
                    Ok(Some(after)) if after == before => counts.unchanged += 1,
                    Ok(Some(after)) => changes.push(Change { before, after }),
                    // Nothing is derived from what is gone.
                    Ok(None) => {
                        let quality = vec![<&str>::from(Flag::Impossible).to_owned()];
                        changes.push(Change { after: Row { quality, ..before.clone() }, before });
                    }
                    Err(problem) => {
                        let Series { device, metric } = series;
                        return Ok(Err(format!("{device} {metric} at {}: {problem}", before.time)));
                    }
                }
            }
            counts.corrected += changes.len() as u64;
            if changes.is_empty() {
                continue;
            }
            if self.dry_run {
                let places = places(&series.device, &changes);
                let readings: Vec<_> = changes.iter().map(|change| change.reading(series)).collect();
                let (written, removed) =
                    derived.preview(transaction, &places, &[], &readings).await?.counts();
                counts.derived_written += written;
                counts.derived_removed += removed;
                continue;
            }
            self.keep(transaction, &statements, series, &changes).await?;
            let Series { device, metric } = series;
            let deletes = self.correction == Correction::Delete;
            statements.write(transaction, series, &changes, deletes).await?;
            let mut values = derived.derive(transaction, &places(device, &changes), &[]).await?;
            let mut kept: Vec<_> =
                changes.iter().map(|change| Key::new(device, metric, change.before.time)).collect();
            if deletes {
                values.remove_measured(kept.drain(..));
            }
            let (written, removed) = derived.write(transaction, &kept, &values).await?;
            counts.derived_written += written;
            counts.derived_removed += removed;
        }
        Ok(Ok(()))
    }

    /// Keeps the readings as they are, with what becomes of them.
    async fn keep(
        &self,
        transaction: &Transaction<'_>,
        statements: &Statements,
        series: &Series,
        changes: &[Change],
    ) -> QueryResult<()> {
        let deletes = self.correction == Correction::Delete;
        let statement = transaction.prepare_cached(&statements.keep).await?;
        let parameters: [&(dyn ToSql + Sync); 9] = [
            &series.device,
            &series.metric,
            &column(changes, |change| change.before.time),
            &column(changes, |change| (!deletes).then_some(change.after.value)),
            &column(changes, |change| (!deletes).then(|| change.after.quality.join(","))),
            &self.command,
            &self.correction.name(),
            &self.reason,
            &self.by,
        ];
        transaction.execute(&statement, &parameters).await.map(drop)
    }
}

/// The statements for corrections of a fleet's readings.
struct Statements {
    load: String,
    keep: String,
    update: String,
    delete: String,
}

impl Statements {
    fn new(tables: &Tables) -> Self {
        let load = format!(
            "SELECT {} FROM {tables}_readings
             WHERE device = $1 AND metric = $2 AND time > $3 AND time <= $4 ORDER BY time LIMIT {PAGE}",
            Row::COLUMNS
        );
        let keep = format!(
            "INSERT INTO {tables}_corrections
                 (device, metric, time, value, quality, was_value, was_unit, was_quality, raw, raw_unit, calibration,
                  task_id, worker, stored_at, start_time, command, action, reason, corrected_by)
             SELECT r.device, r.metric, r.time, new.value, string_to_array(new.quality, ','), r.value, r.unit, r.quality,
                    r.raw, r.raw_unit, r.calibration, r.task_id, r.worker, r.stored_at, r.start_time, $6, $7, $8, $9
             FROM unnest($3::timestamptz[], $4::float8[], $5::text[]) AS new(time, value, quality)
             JOIN {tables}_readings AS r ON r.device = $1 AND r.metric = $2 AND r.time = new.time
             ORDER BY r.time"
        );
        let update = format!(
            "UPDATE {tables}_readings AS reading SET value = new.value, quality = string_to_array(new.quality, ',')
             FROM unnest($5::timestamptz[], $6::float8[], $7::text[]) AS new(time, value, quality)
             WHERE reading.device = $1 AND reading.metric = $2 AND reading.time = new.time
             AND reading.time BETWEEN $3 AND $4"
        );
        let delete = format!(
            "DELETE FROM {tables}_readings WHERE device = $1 AND metric = $2 AND time = ANY($5)
             AND time BETWEEN $3 AND $4"
        );
        Self { load, keep, update, delete }
    }

    /// The next readings of a series by their times; [`None`] is a derived value. They are locked, unless nothing will be
    /// written.
    async fn load(
        &self,
        transaction: &Transaction<'_>,
        series: &Series,
        after: OffsetDateTime,
        last: OffsetDateTime,
        dry_run: bool,
    ) -> QueryResult<Vec<(OffsetDateTime, Option<Row>)>> {
        let load = if dry_run { self.load.clone() } else { format!("{} FOR UPDATE", self.load) };
        let statement = transaction.prepare_cached(&load).await?;
        let parameters: [&(dyn ToSql + Sync); 4] = [&series.device, &series.metric, &after, &last];
        let rows = transaction.query(&statement, &parameters).await?;
        Ok(rows.iter().map(|row| (row.get(0), Row::of(row))).collect())
    }

    /// Writes corrected readings, which are locked, or removes them.
    async fn write(
        &self,
        transaction: &Transaction<'_>,
        series: &Series,
        changes: &[Change],
        deletes: bool,
    ) -> QueryResult<()> {
        let (Some(first), Some(last)) = (changes.first(), changes.last()) else { return Ok(()) };
        let times = column(changes, |change| change.before.time);
        let values = column(changes, |change| change.after.value);
        let quality = column(changes, |change| change.after.quality.join(","));
        let mut parameters: Vec<&(dyn ToSql + Sync)> =
            vec![&series.device, &series.metric, &first.before.time, &last.before.time, &times];
        let statement = if deletes {
            &self.delete
        } else {
            parameters.extend([&values as &(dyn ToSql + Sync), &quality]);
            &self.update
        };
        let statement = transaction.prepare_cached(statement).await?;
        transaction.execute(&statement, &parameters).await.map(drop)
    }
}

impl Corrected {
    /// Lines for a terminal.
    pub(super) fn text(&self, correction: Correction) -> String {
        let Self { dry_run, read, corrected, unchanged, skipped_derived, derived_written, derived_removed } =
            *self;
        let done = match correction {
            Correction::Flag(_) => "flagged",
            Correction::Amend(_) => "amended",
            Correction::Delete => "deleted",
        };
        let would = if dry_run { "would be " } else { "" };
        let mut text = format!(
            "{} readings: {} {would}{done}, {} unchanged\n",
            grouped(read),
            grouped(corrected),
            grouped(unchanged)
        );
        if skipped_derived > 0 {
            text += &format!(
                "{} derived values skipped: they follow from what they are derived from\n",
                grouped(skipped_derived)
            );
        }
        text += &format!(
            "derived values: {} {would}written, {} {would}removed\n",
            grouped(derived_written),
            grouped(derived_removed)
        );
        if corrected > 0 && !dry_run {
            text += "rollups are computed again, and the workers judge alarms again\n";
        }
        text
    }
}
