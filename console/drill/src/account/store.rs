//! The workers' tables in Postgres.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow};
use garenne_database::{DatabaseError, PostgresPool, Tables};
use garenne_operator::operator::Operator;
use time::OffsetDateTime;
use tokio_postgres::{Row, types::ToSql};

use super::Expected;

/// Maximum of readings in one query.
const BATCH: usize = 5_000;

/// The database that the workers write to.
pub(crate) struct Store {
    pool: PostgresPool,
    tables: Tables,
}

impl Store {
    /// Connects, if the settings name a database.
    pub(crate) async fn connect(operator: &Operator) -> Result<Option<Self>> {
        if operator.settings.postgres_url.is_none() {
            return Ok(None);
        }
        let (pool, tables) = operator.database().map_err(|failure| anyhow!(failure.line))?;
        let store = Self { pool, tables };
        store.query("SELECT 1", &[]).await?;
        Ok(Some(store))
    }

    async fn query(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let rows = async { Ok::<_, DatabaseError>(self.pool.client().await?.query(sql, parameters).await?) };
        rows.await
            .with_context(|| format!("cannot query Postgres at {} (--postgres-url)", self.pool.address()))
    }

    /// The number of effects of each task, by a query for task ids and counts. Without one, the results are counted.
    pub(super) async fn counts(&self, sql: Option<&str>) -> Result<HashMap<String, u64>> {
        let results = format!("SELECT task_id, count(*) FROM {}_results GROUP BY task_id", self.tables);
        let sql = sql.unwrap_or(&results);
        let rows = self.query(sql, &[]).await.with_context(|| format!("effects: {sql}"))?;
        let count = |row: &Row| Ok((row.try_get(0)?, row.try_get::<_, i64>(1)?.unsigned_abs()));
        rows.iter().map(count).collect()
    }

    /// The number of rows of each expected reading, by task id. Rows are counted by reading and not by task, so that a
    /// row of another task and a missing unique key are found.
    pub(super) async fn stored_readings(&self, expected: &[Expected]) -> Result<HashMap<String, u64>> {
        let query = format!(
            "SELECT place, count(*) FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::int8[])
                 AS wanted(device, metric, time, place)
             JOIN {}_readings AS stored USING (device, metric, time) GROUP BY place",
            self.tables
        );
        let mut effects = HashMap::new();
        for batch in expected.chunks(BATCH) {
            let (mut devices, mut metrics, mut times, mut places) = (vec![], vec![], vec![], vec![]);
            for (place, one) in batch.iter().enumerate() {
                let Some(key) = &one.reading else { continue };
                let nanos = i128::from(key.time.as_micros()) * 1000;
                let Ok(time) = OffsetDateTime::from_unix_timestamp_nanos(nanos) else { continue };
                devices.push(&*key.device);
                metrics.push(&*key.metric);
                times.push(time);
                places.push(place as i64);
            }
            for row in self.query(&query, &[&devices, &metrics, &times, &places]).await? {
                let (place, count): (i64, i64) = (row.get(0), row.get(1));
                effects.insert(batch[place as usize].id.clone(), count.unsigned_abs());
            }
        }
        Ok(effects)
    }

    /// The distinct pairs of device and metric of these devices from `from` to before `to`, without derived values.
    pub(crate) async fn measured(
        &self,
        devices: &[&str],
        from: OffsetDateTime,
        to: OffsetDateTime,
    ) -> Result<Vec<(String, String)>> {
        let query = format!(
            "SELECT DISTINCT device, metric FROM {}_readings
             WHERE device = ANY($1) AND time >= $2 AND time < $3 AND raw IS NOT NULL ORDER BY device, metric",
            self.tables
        );
        let rows = self.query(&query, &[&devices, &from, &to]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// The outputs of the tasks that have a result, by task id.
    pub(crate) async fn outputs(&self, tasks: &[String]) -> Result<HashMap<String, serde_json::Value>> {
        let query = format!("SELECT task_id, output FROM {}_results WHERE task_id = ANY($1)", self.tables);
        let rows = self.query(&query, &[&tasks]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}
