//! Results and readings in Postgres: batched, in one transaction, each effect once.
//!
//! A result is unique by task id, a reading by device, metric and time. Writing either again changes
//! nothing; the same reading with another value is a conflict.

mod alarms;
mod dial;
mod notice;
mod rows;
mod server;
mod silence;
mod window;

use std::{collections::HashMap, sync::Arc, time::Duration};

use deadpool_postgres::Object;
use futures_util::future::BoxFuture;
use garenne_common::resilience::deadline;
use time::OffsetDateTime;
use tokio_postgres::types::Json;

use alarms::{Alarms, Touched};
pub use dial::Database;
use garenne::sink::{Accepted, Finished, Sink, SinkError, Start};
use rows::Rows;
pub use server::PostgresError;
use server::{Server, explain};
pub(crate) use silence::Look;
pub use silence::Silences;
pub use window::StoredReadings;

use crate::alarm::Rules;

/// What becomes of a reading whose key is stored with another value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnConflict {
    /// The task is dead with reason `conflict`; what is stored stays.
    #[default]
    Dead,
    /// The newer value replaces the stored one.
    Replace,
}

/// The tables, derived from the fleet's prefix.
#[derive(Clone, Debug)]
struct Tables {
    readings: String,
    results: String,
    alarms: String,
    notices: String,
    watches: String,
}

impl Tables {
    fn new(prefix: &str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        let stem: String = prefix.chars().map(plain).collect();
        let table = |name| format!("{stem}_{name}");
        Self {
            readings: table("readings"),
            results: table("results"),
            alarms: table("alarms"),
            notices: table("notices"),
            watches: table("watches"),
        }
    }

    /// Creates what is missing.
    fn definition(&self) -> String {
        let Self { readings, results, alarms, notices, watches } = self;
        format!(
            "BEGIN;
             SELECT pg_advisory_xact_lock({SCHEMA_LOCK});
             CREATE TABLE IF NOT EXISTS {readings} (
                 device text, metric text, time timestamptz, value double precision NOT NULL, unit text,
                 raw double precision, quality text[] NOT NULL, task_id text NOT NULL, worker text NOT NULL,
                 stored_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (device, metric, time));
             CREATE TABLE IF NOT EXISTS {results} (
                 task_id text PRIMARY KEY, kind text NOT NULL, attempt int NOT NULL, worker text NOT NULL,
                 started_at timestamptz NOT NULL, duration_ms double precision NOT NULL, output jsonb NOT NULL);
             CREATE TABLE IF NOT EXISTS {alarms} (
                 id text PRIMARY KEY, device text NOT NULL, metric text NOT NULL, rule text NOT NULL,
                 since timestamptz NOT NULL, upto timestamptz NOT NULL, ended timestamptz, value double precision);
             CREATE INDEX IF NOT EXISTS {alarms}_by_device ON {alarms} (device, metric, ended);
             CREATE TABLE IF NOT EXISTS {notices} (
                 id text PRIMARY KEY, task_id text NOT NULL, kind text NOT NULL, payload jsonb NOT NULL,
                 at timestamptz NOT NULL DEFAULT now());
             CREATE INDEX IF NOT EXISTS {notices}_by_task ON {notices} (task_id);
             CREATE TABLE IF NOT EXISTS {watches} (
                 device text, metric text, rule text, watch_id text NOT NULL, missed timestamptz,
                 PRIMARY KEY (device, metric, rule));
             COMMIT"
        )
    }
}

/// Writes to Postgres through a small pool.
pub struct PostgresSink {
    server: Server,
    tables: Tables,
    on_conflict: OnConflict,
    /// None where no rule asks for any.
    alarms: Option<Alarms>,
}

/// How long a batch may take, which is milliseconds otherwise: a server that hangs with its connections
/// open is told from a slow one by nothing else.
const WRITE: Duration = Duration::from_secs(30);
/// Guards table creation when a whole fleet starts at once.
const SCHEMA_LOCK: i64 = 0x0067_6172_656e_6e65;

impl PostgresSink {
    /// The name in the setting `sinks`, in logs and in metrics.
    pub const NAME: &'static str = "postgres";

    /// Connects and creates the tables where they are missing. Their names begin with `prefix`,
    /// whatever is no letter or digit in it replaced by `_`. A server that is away or still starting is
    /// waited for within `patience`.
    ///
    /// # Errors
    /// [`PostgresError`] says what to check.
    pub async fn connect(
        database: Database,
        prefix: &str,
        on_conflict: OnConflict,
        rules: Arc<Rules>,
        patience: Duration,
    ) -> Result<Arc<Self>, PostgresError> {
        let server = Server::new(database)?;
        let tables = Tables::new(prefix);
        server.prepare(&tables.definition(), patience).await?;
        let alarms = (!rules.is_empty()).then(|| Alarms { rules, tables: tables.clone() });
        Ok(Arc::new(Self { server, tables, on_conflict, alarms }))
    }

    /// A value that Postgres cannot hold spoils all of its batch: the batch is halved until that value is
    /// alone, which is refused, and the others are stored.
    fn store_apart<'a>(&'a self, batch: &'a [Finished]) -> BoxFuture<'a, Result<Vec<Accepted>, SinkError>> {
        Box::pin(async move {
            match self.store(batch).await {
                Ok(accepted) => Ok(accepted),
                Err(Trouble::Away(detail)) => Err(SinkError { sink: Self::NAME, detail }),
                Err(Trouble::Value(detail)) if batch.len() == 1 => Ok(vec![Accepted::Refused(detail)]),
                Err(Trouble::Value(_)) => {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    let mut accepted = self.store_apart(first).await?;
                    accepted.extend(self.store_apart(second).await?);
                    Ok(accepted)
                }
            }
        })
    }

    async fn store(&self, batch: &[Finished]) -> Result<Vec<Accepted>, Trouble> {
        let mut client = self.server.client().await.map_err(|setback| Trouble::Away(setback.detail))?;
        match deadline(WRITE, self.store_with(&mut client, batch)).await {
            Ok(stored) => stored,
            Err(late) => {
                // It may still answer, which would be taken for the answer to the next batch.
                drop(Object::take(client));
                Err(Trouble::Away(late.to_string()))
            }
        }
    }

    async fn store_with(&self, client: &mut Object, batch: &[Finished]) -> Result<Vec<Accepted>, Trouble> {
        let transaction = client.transaction().await?;
        let mut accepted = vec![Accepted::Stored; batch.len()];
        let rows = Rows::of(batch);
        let watched = self.alarms.as_ref().map(|alarms| (alarms, alarms.touched(batch)));
        let watched = watched.filter(|(_, touched)| !touched.is_empty());
        if let Some((alarms, touched)) = &watched {
            let keys = touched.iter().map(Touched::key);
            alarms.lock(&transaction, keys).await?;
        }
        if !rows.device.is_empty() {
            for (at, detail) in self.store_readings(&transaction, &rows).await? {
                accepted[at] = Accepted::Conflict(detail);
            }
        }
        let kept = batch.iter().zip(&accepted).filter(|(_, accepted)| **accepted == Accepted::Stored);
        let kept: Vec<_> = kept.map(|(finished, _)| finished).collect();
        self.store_results(&transaction, &kept).await?;
        if let Some((alarms, _)) = &watched {
            let starts = alarms.judged(&transaction, &kept).await?;
            add_starts(batch, &mut accepted, starts);
        }
        transaction.commit().await?;
        Ok(accepted)
    }

    /// The positions in the batch of results that contradict a stored reading, and how.
    async fn store_readings(
        &self,
        transaction: &deadpool_postgres::Transaction<'_>,
        rows: &Rows<'_>,
    ) -> Result<Vec<(usize, String)>, tokio_postgres::Error> {
        let table = &self.tables.readings;
        // What is measured stands against what is derived, which contradicts nobody.
        let overrules = match self.on_conflict {
            OnConflict::Dead => format!("{table}.raw IS NULL AND excluded.raw IS NOT NULL"),
            // A later duplicate within one batch would be an error: the last one wins beforehand.
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
        let Rows { device, metric, time, value, unit, raw, quality, task_id, worker, place, .. } = rows;
        let Rows { partner, made_from, .. } = rows;
        let inserted = transaction
            .execute(
                &statement,
                &[
                    device, metric, time, value, unit, raw, quality, task_id, worker, place, partner,
                    made_from,
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
        let conflicts = transaction.query(&statement, &[device, metric, time, value, place, raw]).await?;
        Ok(conflicts
            .into_iter()
            .map(|row| {
                let (place, device, metric): (i32, &str, &str) = (row.get(0), row.get(1), row.get(2));
                let (new, stored): (f64, f64) = (row.get(3), row.get(4));
                let detail = format!("{device} {metric} is stored as {stored}, this task says {new}");
                (usize::try_from(place).expect("a position in the batch"), detail)
            })
            .collect())
    }

    async fn store_results(
        &self,
        transaction: &deadpool_postgres::Transaction<'_>,
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
        self.store_apart(batch)
    }
}

/// Hands each task what was written down under it.
fn add_starts(batch: &[Finished], accepted: &mut [Accepted], mut starts: HashMap<String, Vec<Start>>) {
    for (finished, accepted) in batch.iter().zip(accepted) {
        if *accepted == Accepted::Stored
            && let Some(starts) = starts.remove(finished.envelope.id.as_str())
        {
            *accepted = Accepted::StoredAnd(starts);
        }
    }
}

/// Why a batch was not stored.
enum Trouble {
    /// It may be later.
    Away(String),
    /// It never can be: Postgres cannot hold a value in it.
    Value(String),
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Self {
        let detail = explain(&error);
        // Class 22 is SQL's "data exception".
        match error.code() {
            Some(code) if code.code().starts_with("22") => Self::Value(detail),
            _ => Self::Away(detail),
        }
    }
}
