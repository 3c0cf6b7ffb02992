//! Results and readings in Postgres.
//!
//! A batch is stored in one transaction. A result is unique by task id, a reading by device, metric and time,
//! so that storing either again changes nothing. A reading with another value than the stored one is a
//! conflict ([`OnConflict`]). Alarm rules are evaluated in the same transaction.

mod alarm_evaluator;
mod columns;
mod connector;
mod database;
mod error;
mod notice;
mod outbox;
mod pool;
mod reading_store;
pub mod silence;
mod tables;
pub mod watch;

use std::{sync::Arc, time::Duration};

use deadpool_postgres::{Object, Transaction};
use futures_util::future::BoxFuture;
use garenne_common::{exit::Failure, resilience::deadline};
use time::OffsetDateTime;
use tokio_postgres::{Row, types::Json};

use alarm_evaluator::AlarmEvaluator;
use columns::{Parameters, column};
pub use database::Database;
use error::{DatabaseError, QueryResult};
use garenne::{
    handler::ReadingRow,
    sink::{FinishedTask, Sink, SinkAnswer, SinkError},
};
use garenne_sensors::alarm::Rules;
use pool::PostgresPool;
pub use reading_store::PostgresReadingStore;
use tables::Tables;

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
    alarms: AlarmEvaluator,
}

/// A reading of a batch: the index of its result, the result, and the reading.
type NewReading<'a> = (i32, &'a FinishedTask, &'a ReadingRow);

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
    /// The server did not answer in time, or refused the connection or the tables.
    pub async fn connect(
        database: Database,
        prefix: &str,
        on_conflict: OnConflict,
        rules: Arc<Rules>,
        timeout: Duration,
    ) -> Result<Arc<Self>, Failure> {
        let pool = PostgresPool::new(database);
        let tables = Tables::new(prefix);
        pool.run_with_retry(&tables.definition(), timeout).await?;
        let alarms = AlarmEvaluator { rules, tables: tables.clone() };
        Ok(Arc::new(Self { pool, tables, on_conflict, alarms }))
    }

    /// Stores a batch. A value that Postgres cannot hold fails the whole transaction, so the batch is halved
    /// until that result is alone. It is refused, and the others are stored.
    fn store_bisecting<'a>(
        &'a self,
        batch: &'a [FinishedTask],
    ) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        Box::pin(async move {
            match self.store(batch).await {
                Ok(accepted) => Ok(accepted),
                Err(DatabaseError { detail, is_invalid_value: false, .. }) => {
                    Err(SinkError { sink: Self::NAME, detail })
                }
                Err(error) if batch.len() == 1 => Ok(vec![SinkAnswer::Refused(error.detail)]),
                Err(_) => {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    let mut accepted = self.store_bisecting(first).await?;
                    accepted.extend(self.store_bisecting(second).await?);
                    Ok(accepted)
                }
            }
        })
    }

    async fn store(&self, batch: &[FinishedTask]) -> Result<Vec<SinkAnswer>, DatabaseError> {
        let mut client = self.pool.client().await?;
        match deadline(WRITE_TIMEOUT, self.store_with(&mut client, batch)).await {
            Ok(stored) => Ok(stored?),
            Err(elapsed) => {
                // A late answer would be taken for that of the next batch: do not reuse the connection.
                drop(Object::take(client));
                Err(DatabaseError::transient(elapsed))
            }
        }
    }

    async fn store_with(&self, client: &mut Object, batch: &[FinishedTask]) -> QueryResult<Vec<SinkAnswer>> {
        let transaction = client.transaction().await?;
        let mut accepted = vec![SinkAnswer::Stored; batch.len()];
        let changed = self.alarms.changed_series(batch);
        if !changed.is_empty() {
            let series = changed.iter().map(|series| (series.device, series.metric));
            self.alarms.lock(&transaction, series).await?;
        }
        for (index, detail) in self.store_readings(&transaction, batch).await? {
            accepted[index] = SinkAnswer::Conflict(detail);
        }
        let stored = batch.iter().zip(&accepted).filter(|(_, accepted)| **accepted == SinkAnswer::Stored);
        let stored: Vec<_> = stored.map(|(finished, _)| finished).collect();
        self.store_results(&transaction, &stored).await?;
        if !changed.is_empty() {
            let mut starts = self.alarms.evaluate_batch(&transaction, &stored).await?;
            for (finished, accepted) in batch.iter().zip(&mut accepted) {
                if *accepted == SinkAnswer::Stored
                    && let Some(starts) = starts.remove(finished.envelope.id.as_str())
                {
                    *accepted = SinkAnswer::StoredAnd(starts);
                }
            }
        }
        transaction.commit().await?;
        Ok(accepted)
    }

    /// Stores the readings. Returns the index in the batch of each result that conflicts with a stored reading,
    /// and the conflict.
    async fn store_readings(
        &self,
        transaction: &Transaction<'_>,
        batch: &[FinishedTask],
    ) -> QueryResult<Vec<(usize, String)>> {
        let results = batch.iter().zip(0..);
        let rows: Vec<NewReading<'_>> = results
            .flat_map(|(finished, index)| finished.output.rows.iter().map(move |row| (index, finished, row)))
            .collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let table = format!("{}_readings", self.tables);
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
        let index = column(&rows, |(index, ..)| *index);
        let device = column(&rows, |(.., row)| &*row.device);
        let metric = column(&rows, |(.., row)| &*row.metric);
        let time = column(&rows, |(.., row)| row.time);
        let value = column(&rows, |(.., row)| row.value);
        let raw = column(&rows, |(.., row)| row.raw);
        let parameters: Parameters<'_, 12> = [
            &device,
            &metric,
            &time,
            &value,
            &column(&rows, |(.., row)| row.unit),
            &raw,
            &column(&rows, |(.., row)| row.quality.join(",")),
            &column(&rows, |(_, finished, _)| finished.envelope.id.as_str()),
            &column(&rows, |(_, finished, _)| &*finished.worker),
            &index,
            &column(&rows, |(.., row)| row.partner.as_ref().map(|(metric, _)| &**metric)),
            &column(&rows, |(.., row)| row.partner.as_ref().map(|(_, value)| *value)),
        ];
        let inserted = transaction.execute(&statement, &parameters).await?;
        if self.on_conflict == OnConflict::Replace || inserted == rows.len() as u64 {
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
        let parameters: Parameters<'_, 6> = [&device, &metric, &time, &value, &index, &raw];
        let conflict = |row: Row| {
            let (index, device, metric): (i32, &str, &str) = (row.get(0), row.get(1), row.get(2));
            let (received, stored): (f64, f64) = (row.get(3), row.get(4));
            let detail =
                format!("conflicting value for {device} {metric}: stored {stored}, received {received}");
            (usize::try_from(index).expect("an index in the batch"), detail)
        };
        Ok(transaction.query(&statement, &parameters).await?.into_iter().map(conflict).collect())
    }

    async fn store_results(&self, transaction: &Transaction<'_>, batch: &[&FinishedTask]) -> QueryResult<()> {
        let insert = format!(
            "INSERT INTO {}_results (task_id, kind, attempt, worker, started_at, duration_ms, output)
             SELECT * FROM unnest($1::text[], $2::text[], $3::int4[], $4::text[], $5::timestamptz[],
                                  $6::float8[], $7::jsonb[])
             ORDER BY 1 ON CONFLICT DO NOTHING",
            self.tables
        );
        let statement = transaction.prepare_cached(&insert).await?;
        let parameters: Parameters<'_, 7> = [
            &column(batch, |f| f.envelope.id.as_str()),
            &column(batch, |f| f.envelope.kind.as_str()),
            &column(batch, |f| i32::try_from(f.attempt()).unwrap_or(i32::MAX)),
            &column(batch, |f| &*f.worker),
            &column(batch, |f| OffsetDateTime::from(f.started_at)),
            &column(batch, |f| f.duration_ms()),
            &column(batch, |f| Json(&f.output.json)),
        ];
        transaction.execute(&statement, &parameters).await.map(drop)
    }
}

impl Sink for PostgresSink {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        self.store_bisecting(batch)
    }
}
