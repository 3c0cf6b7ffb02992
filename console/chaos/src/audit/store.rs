//! The workers' tables in Postgres.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow};
use garenne_common::supervise::{self, TaskHandle};
use time::OffsetDateTime;
use tokio_postgres::{Client, Config, NoTls, Row};

use super::lines::Expected;

/// Maximum of readings in one query.
const BATCH: usize = 5_000;

/// The database that the workers write to.
pub struct Store {
    client: Client,
    _connection: TaskHandle<()>,
    readings: String,
    results: String,
}

/// The name of a fleet's table: its prefix with `_` for every character that is not a letter or digit.
fn table(prefix: &str, what: &str) -> String {
    let stem = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    format!("{}_{what}", prefix.chars().map(stem).collect::<String>())
}

impl Store {
    /// Connects.
    ///
    /// # Errors
    /// If Postgres cannot be queried.
    pub async fn connect(url: &str, prefix: &str) -> Result<Self> {
        let config: Config = url.parse().map_err(explain)?;
        let (client, connection) = config.connect(NoTls).await.map_err(explain)?;
        // The client's next call returns the error of the connection too.
        let connection = async { drop(connection.await) };
        let _connection = supervise::isolated("postgres connection", connection).spawn();
        let [readings, results] = ["readings", "results"].map(|what| table(prefix, what));
        Ok(Self { client, _connection, readings, results })
    }

    /// The number of effects of each task, by a query for task ids and counts. Without one, the results are counted.
    ///
    /// # Errors
    /// If the query fails.
    pub async fn count_effects(&self, sql: Option<&str>) -> Result<HashMap<String, u64>> {
        let results = format!("SELECT task_id, count(*) FROM {} GROUP BY task_id", self.results);
        let sql = sql.unwrap_or(&results);
        let rows =
            self.client.query(sql, &[]).await.map_err(explain).with_context(|| format!("effects: {sql}"))?;
        let count = |row: &Row| Ok((row.try_get(0)?, row.try_get::<_, i64>(1)?.unsigned_abs()));
        rows.iter().map(count).collect()
    }

    /// The number of rows of each expected reading, by task id. Rows are counted by reading and not by task, so that a
    /// row of another task and a missing unique key are found.
    ///
    /// # Errors
    /// If Postgres cannot be queried.
    pub async fn effects(&self, expected: &[Expected]) -> Result<HashMap<String, u64>> {
        let query = format!(
            "SELECT place, count(*) FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::int8[])
                 AS wanted(device, metric, time, place)
             JOIN {} AS stored USING (device, metric, time) GROUP BY place",
            self.readings
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
            let rows =
                self.client.query(&query, &[&devices, &metrics, &times, &places]).await.map_err(explain)?;
            for row in rows {
                let (place, count): (i64, i64) = (row.get(0), row.get(1));
                effects.insert(batch[place as usize].id.clone(), count.unsigned_abs());
            }
        }
        Ok(effects)
    }

    /// The distinct pairs of device and metric of these devices from `from` to before `to`, without derived values.
    ///
    /// # Errors
    /// If Postgres cannot be queried.
    pub async fn measured(
        &self,
        devices: &[&str],
        from: OffsetDateTime,
        to: OffsetDateTime,
    ) -> Result<Vec<(String, String)>> {
        let query = format!(
            "SELECT DISTINCT device, metric FROM {}
             WHERE device = ANY($1) AND time >= $2 AND time < $3 AND raw IS NOT NULL ORDER BY device, metric",
            self.readings
        );
        let rows = self.client.query(&query, &[&devices, &from, &to]).await.map_err(explain)?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// The outputs of the tasks that have a result, by task id.
    ///
    /// # Errors
    /// If Postgres cannot be queried.
    pub async fn outputs(&self, tasks: &[&str]) -> Result<HashMap<String, serde_json::Value>> {
        let query = format!("SELECT task_id, output FROM {} WHERE task_id = ANY($1)", self.results);
        let rows = self.client.query(&query, &[&tasks]).await.map_err(explain)?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}

/// The server's message if there is one: the client only says "db error" then.
fn explain(error: tokio_postgres::Error) -> anyhow::Error {
    let detail = match error.as_db_error() {
        Some(error) => error.message().to_owned(),
        None => std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}")),
    };
    anyhow!("cannot query Postgres: {detail} (--postgres-url)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_named_after_the_prefix() {
        assert_eq!(table("garenne", "readings"), "garenne_readings");
        assert_eq!(table("My-fleet.2", "results"), "my_fleet_2_results");
    }
}
