//! Reads stored readings back for `window.analyze`.

use futures_util::future::BoxFuture;
use garenne_protocol::sensor::Timestamp;
use time::OffsetDateTime;

use crate::{
    database::Database,
    error::{PostgresError, error_detail},
    pool::PostgresPool,
    tables::Tables,
};
use garenne_sensors::store::{ReadingStore, StoreError, StoredWindow};

/// A [`ReadingStore`] over the table that [`PostgresSink`](crate::PostgresSink) writes. Connects on the first
/// query.
pub struct PostgresReadingStore {
    pool: PostgresPool,
    query: String,
}

impl PostgresReadingStore {
    /// The readings of the fleet with this prefix.
    ///
    /// # Errors
    /// [`PostgresError::Url`] and [`PostgresError::Mode`].
    pub fn new(database: Database, prefix: &str) -> Result<Self, PostgresError> {
        let query = format!(
            "SELECT time, value FROM {} WHERE device = $1 AND metric = $2 AND time >= $3 AND time < $4 ORDER BY time",
            Tables::new(prefix).readings
        );
        Ok(Self { pool: PostgresPool::new(database)?, query })
    }

    async fn query_window(
        &self,
        device: &str,
        metric: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<StoredWindow, String> {
        let client = self.pool.client().await.map_err(|failure| failure.detail)?;
        let statement = client.prepare_cached(&self.query).await.map_err(|e| error_detail(&e))?;
        let (from, to) = (date_time(from)?, date_time(to)?);
        let rows =
            client.query(&statement, &[&device, &metric, &from, &to]).await.map_err(|e| error_detail(&e))?;
        let mut window = StoredWindow::default();
        for row in rows {
            window.times.push(timestamp(row.get(0))?);
            window.values.push(Some(row.get(1)));
        }
        Ok(window)
    }
}

impl ReadingStore for PostgresReadingStore {
    fn window<'a>(
        &'a self,
        device: &'a str,
        metric: &'a str,
        from: Timestamp,
        to: Timestamp,
    ) -> BoxFuture<'a, Result<StoredWindow, StoreError>> {
        Box::pin(async move { self.query_window(device, metric, from, to).await.map_err(StoreError::new) })
    }
}

fn timestamp(time: OffsetDateTime) -> Result<Timestamp, String> {
    let micros = i64::try_from(time.unix_timestamp_nanos() / 1000).map_err(|error| error.to_string())?;
    Timestamp::from_micros(micros).map_err(|error| error.to_string())
}

fn date_time(time: Timestamp) -> Result<OffsetDateTime, String> {
    let nanos = i128::from(time.as_micros()) * 1000;
    OffsetDateTime::from_unix_timestamp_nanos(nanos).map_err(|error| error.to_string())
}
