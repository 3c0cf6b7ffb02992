//! Reads stored readings back for `window.analyze`.

use std::ops::Range;

use futures_util::future::BoxFuture;
use garenne_protocol::sensor::Timestamp;
use time::OffsetDateTime;

use crate::{database::Database, error::DatabaseError, pool::PostgresPool, tables::Tables};
use garenne::handler::TaskError;
use garenne_sensors::window::{ReadingStore, Series};

/// A [`ReadingStore`] over the table that [`PostgresSink`](crate::PostgresSink) writes. Connects on the first
/// query.
pub struct PostgresReadingStore {
    pool: PostgresPool,
    query: String,
}

impl PostgresReadingStore {
    /// The readings of the fleet with this prefix.
    pub fn new(database: Database, prefix: &str) -> Self {
        let query = format!(
            "SELECT time, value FROM {}_readings WHERE device = $1 AND metric = $2 AND time >= $3 AND time < $4 ORDER BY time",
            Tables::new(prefix)
        );
        Self { pool: PostgresPool::new(database), query }
    }
}

impl ReadingStore for PostgresReadingStore {
    fn window<'a>(
        &'a self,
        device: &'a str,
        metric: &'a str,
        times: Range<Timestamp>,
    ) -> BoxFuture<'a, Result<Series, TaskError>> {
        let (from, to): (OffsetDateTime, OffsetDateTime) = (times.start.into(), times.end.into());
        let read = async move {
            let client = self.pool.client().await?;
            let statement = client.prepare_cached(&self.query).await?;
            let mut window = Series::default();
            for row in client.query(&statement, &[&device, &metric, &from, &to]).await? {
                window.times.push(row.get::<_, OffsetDateTime>(0).into());
                window.values.push(Some(row.get(1)));
            }
            Ok(window)
        };
        Box::pin(async { read.await.map_err(|error: DatabaseError| TaskError::retry(error)) })
    }
}
