//! Results and readings in Postgres.
//!
//! A batch is stored in one transaction. A result is unique by task id, a reading by device, metric and time,
//! so that storing either again changes nothing. A reading with another value than the stored one is a
//! conflict ([`OnConflict`]). Alarm rules are evaluated in the same transaction.

mod alarm_evaluator;
mod connector;
mod database;
mod error;
mod notice;
mod outbox;
mod pool;
mod reading_columns;
mod reading_store;
mod silence_detector;
mod tables;

use std::{collections::HashMap, sync::Arc, time::Duration};

use deadpool_postgres::{Object, Transaction};
use futures_util::future::BoxFuture;
use garenne_common::resilience::deadline;
use time::OffsetDateTime;
use tokio_postgres::types::Json;

use alarm_evaluator::{AlarmEvaluator, ChangedSeries};
pub use database::Database;
pub use error::PostgresError;
use error::error_detail;
use garenne::sink::{Accepted, Finished, FollowUp, Sink, SinkError};
use pool::PostgresPool;
use reading_columns::ReadingColumns;
pub use reading_store::PostgresReadingStore;
pub use silence_detector::PostgresSilenceDetector;
use tables::Tables;

use garenne_sensors::alarm::Rules;

/// What happens to a reading whose device, metric and time are stored with another value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnConflict {
    /// The task becomes a dead letter with reason `conflict`; the stored value stays.
    #[default]
    Dead,
    /// The new value replaces the stored one.
    Replace,
}

/// Writes results and readings to Postgres.
pub struct PostgresSink {
    pool: PostgresPool,
    tables: Tables,
    on_conflict: OnConflict,
    /// None without rules.
    alarms: Option<AlarmEvaluator>,
}

/// Time limit for a batch, which usually takes milliseconds. Only this timeout detects a server that hangs with
/// its connections open.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

impl PostgresSink {
    /// The name in the setting `sinks`, in logs and in metrics.
    pub const NAME: &'static str = "postgres";

    /// Connects and creates missing tables. Their names begin with `prefix`, with `_` for each character that is
    /// no letter or digit. Retries within `timeout` while the server is unavailable or starting.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub async fn connect(
        database: Database,
        prefix: &str,
        on_conflict: OnConflict,
        rules: Arc<Rules>,
        timeout: Duration,
    ) -> Result<Arc<Self>, PostgresError> {
        let pool = PostgresPool::new(database)?;
        let tables = Tables::new(prefix);
        pool.run_with_retry(&tables.definition(), timeout).await?;
        let alarms = (!rules.is_empty()).then(|| AlarmEvaluator { rules, tables: tables.clone() });
        Ok(Arc::new(Self { pool, tables, on_conflict, alarms }))
    }

    /// Stores a batch. A value that Postgres cannot hold fails the whole transaction, so the batch is halved
    /// until that result is alone. It is refused, and the others are stored.
    fn store_bisecting<'a>(
        &'a self,
        batch: &'a [Finished],
    ) -> BoxFuture<'a, Result<Vec<Accepted>, SinkError>> {
        Box::pin(async move {
            match self.store(batch).await {
                Ok(accepted) => Ok(accepted),
                Err(StoreFailure::Unavailable(detail)) => Err(SinkError { sink: Self::NAME, detail }),
                Err(StoreFailure::InvalidValue(detail)) if batch.len() == 1 => {
                    Ok(vec![Accepted::Refused(detail)])
                }
                Err(StoreFailure::InvalidValue(_)) => {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    let mut accepted = self.store_bisecting(first).await?;
                    accepted.extend(self.store_bisecting(second).await?);
                    Ok(accepted)
                }
            }
        })
    }

    async fn store(&self, batch: &[Finished]) -> Result<Vec<Accepted>, StoreFailure> {
        let client = self.pool.client().await;
        let mut client = client.map_err(|failure| StoreFailure::Unavailable(failure.detail))?;
        match deadline(WRITE_TIMEOUT, self.store_with(&mut client, batch)).await {
            Ok(stored) => stored,
            Err(elapsed) => {
                // A late answer would be taken for that of the next batch: do not reuse the connection.
                drop(Object::take(client));
                Err(StoreFailure::Unavailable(elapsed.to_string()))
            }
        }
    }

    async fn store_with(
        &self,
        client: &mut Object,
        batch: &[Finished],
    ) -> Result<Vec<Accepted>, StoreFailure> {
        let transaction = client.transaction().await?;
        let mut accepted = vec![Accepted::Stored; batch.len()];
        let columns = ReadingColumns::from_batch(batch);
        let alarms = self.alarms.as_ref().map(|alarms| (alarms, alarms.changed_series(batch)));
        let alarms = alarms.filter(|(_, changed)| !changed.is_empty());
        if let Some((alarms, changed)) = &alarms {
            let keys = changed.iter().map(ChangedSeries::key);
            alarms.lock(&transaction, keys).await?;
        }
        if !columns.device.is_empty() {
            for (index, detail) in self.store_readings(&transaction, &columns).await? {
                accepted[index] = Accepted::Conflict(detail);
            }
        }
        let stored = batch.iter().zip(&accepted).filter(|(_, accepted)| **accepted == Accepted::Stored);
        let stored: Vec<_> = stored.map(|(finished, _)| finished).collect();
        self.store_results(&transaction, &stored).await?;
        if let Some((alarms, _)) = &alarms {
            let starts = alarms.evaluate_batch(&transaction, &stored).await?;
            add_starts(batch, &mut accepted, starts);
        }
        transaction.commit().await?;
        Ok(accepted)
    }

    /// Stores the readings. Returns the index in the batch of each result that conflicts with a stored reading,
    /// and the conflict.
    async fn store_readings(
        &self,
        transaction: &Transaction<'_>,
        columns: &ReadingColumns<'_>,
    ) -> Result<Vec<(usize, String)>, tokio_postgres::Error> {
        let table = &self.tables.readings;
        // A measured value (raw is not null) replaces a derived one, and a derived one never conflicts.
        let overrules = match self.on_conflict {
            OnConflict::Dead => format!("{table}.raw IS NULL AND excluded.raw IS NOT NULL"),
            // DISTINCT ON keeps the last of several: an upsert cannot change a row twice.
            OnConflict::Replace => format!(
                "{table}.value <> excluded.value AND (excluded.raw IS NOT NULL OR {table}.raw IS NULL)"
            ),
        };
        let insert = format!(
            "INSERT INTO {table} (device, metric, time, value, unit, raw, quality, task_id, worker)
             SELECT DISTINCT ON (device, metric, time)
                    device, metric, time, value, unit, raw, string_to_array(quality, ','), task_id, worker
             FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::float8[], $5::text[], $6::float8[],
                         $7::text[], $8::text[], $9::text[], $10::int4[], $11::text[], $12::float8[])
                  AS input(device, metric, time, value, unit, raw, quality, task_id, worker, place, partner, made_from)
             WHERE partner IS NULL OR NOT EXISTS (
                 SELECT FROM {table} AS stored WHERE stored.device = input.device
                 AND stored.metric = partner AND stored.time = input.time AND stored.value <> made_from)
             ORDER BY device, metric, time, raw IS NULL, place {order}
             ON CONFLICT (device, metric, time) DO UPDATE SET value = excluded.value, unit = excluded.unit,
                 raw = excluded.raw, quality = excluded.quality, task_id = excluded.task_id,
                 worker = excluded.worker, stored_at = now() WHERE {overrules}",
            order = if self.on_conflict == OnConflict::Replace { "DESC" } else { "ASC" },
        );
        let statement = transaction.prepare_cached(&insert).await?;
        let ReadingColumns { device, metric, time, value, unit, raw, .. } = columns;
        let ReadingColumns { quality, task_id, worker, result_index, partner, partner_value, .. } = columns;
        let inserted = transaction
            .execute(
                &statement,
                &[
                    device,
                    metric,
                    time,
                    value,
                    unit,
                    raw,
                    quality,
                    task_id,
                    worker,
                    result_index,
                    partner,
                    partner_value,
                ],
            )
            .await?;
        if self.on_conflict == OnConflict::Replace || inserted == device.len() as u64 {
            return Ok(Vec::new());
        }
        let compare = format!(
            "SELECT place, device, metric, input.value, stored.value
             FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::float8[], $5::int4[], $6::float8[])
                  AS input(device, metric, time, value, place, raw)
             JOIN {table} AS stored USING (device, metric, time)
             WHERE stored.value <> input.value AND input.raw IS NOT NULL"
        );
        let statement = transaction.prepare_cached(&compare).await?;
        let conflicts =
            transaction.query(&statement, &[device, metric, time, value, result_index, raw]).await?;
        Ok(conflicts
            .into_iter()
            .map(|row| {
                let (index, device, metric): (i32, &str, &str) = (row.get(0), row.get(1), row.get(2));
                let (received, stored): (f64, f64) = (row.get(3), row.get(4));
                let detail =
                    format!("conflicting value for {device} {metric}: stored {stored}, received {received}");
                (usize::try_from(index).expect("an index in the batch"), detail)
            })
            .collect())
    }

    async fn store_results(
        &self,
        transaction: &Transaction<'_>,
        batch: &[&Finished],
    ) -> Result<(), tokio_postgres::Error> {
        let insert = format!(
            "INSERT INTO {} (task_id, kind, attempt, worker, started_at, duration_ms, output)
             SELECT * FROM unnest($1::text[], $2::text[], $3::int4[], $4::text[], $5::timestamptz[],
                                  $6::float8[], $7::jsonb[])
             ORDER BY 1 ON CONFLICT DO NOTHING",
            self.tables.results
        );
        let statement = transaction.prepare_cached(&insert).await?;
        let column = |pick: fn(&Finished) -> &str| batch.iter().map(|f| pick(f)).collect::<Vec<_>>();
        let attempts: Vec<_> = batch.iter().map(|f| i32::try_from(f.attempt()).unwrap_or(i32::MAX)).collect();
        let started: Vec<_> = batch.iter().map(|f| OffsetDateTime::from(f.started_at)).collect();
        let durations: Vec<_> = batch.iter().map(|f| f.duration_ms()).collect();
        let outputs: Vec<_> = batch.iter().map(|f| Json(&f.output.json)).collect();
        transaction
            .execute(
                &statement,
                &[
                    &column(|f| f.envelope.id.as_str()),
                    &column(|f| f.envelope.kind.as_str()),
                    &attempts,
                    &column(|f| &f.worker),
                    &started,
                    &durations,
                    &outputs,
                ],
            )
            .await?;
        Ok(())
    }
}

impl Sink for PostgresSink {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn write<'a>(&'a self, batch: &'a [Finished]) -> BoxFuture<'a, Result<Vec<Accepted>, SinkError>> {
        self.store_bisecting(batch)
    }
}

/// Adds to each stored result the follow-up tasks that alarms start for it.
fn add_starts(batch: &[Finished], accepted: &mut [Accepted], mut starts: HashMap<String, Vec<FollowUp>>) {
    for (finished, accepted) in batch.iter().zip(accepted) {
        if *accepted == Accepted::Stored
            && let Some(starts) = starts.remove(finished.envelope.id.as_str())
        {
            *accepted = Accepted::StoredAnd(starts);
        }
    }
}

/// The reason why a batch was not stored.
enum StoreFailure {
    /// A retry may succeed.
    Unavailable(String),
    /// Postgres cannot hold a value in the batch; no retry can succeed.
    InvalidValue(String),
}

impl From<tokio_postgres::Error> for StoreFailure {
    fn from(error: tokio_postgres::Error) -> Self {
        let detail = error_detail(&error);
        // Class 22 is SQL's "data exception".
        match error.code() {
            Some(code) if code.code().starts_with("22") => Self::InvalidValue(detail),
            _ => Self::Unavailable(detail),
        }
    }
}
