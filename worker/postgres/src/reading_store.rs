//! Reads stored readings back for `window.analyze`.
//!
//! Both statements of a window read one range of the primary key `(device, metric, time)` in its order, at most one entry
//! more than the limit. Neither has a condition on another column. A filter on the flags would make the server read past
//! flagged history without a limit; the worker leaves flagged readings out, and they count towards the limit.

use std::{pin::pin, time::Duration};

use deadpool_postgres::Object;
use futures_util::{TryStreamExt, future::BoxFuture};
use garenne_common::resilience::deadline;
use garenne_sensors::{
    reading::Flag,
    window::{ReadingStore, StoredWindow, WindowQuery},
};
use time::OffsetDateTime;
use tokio_postgres::IsolationLevel;

use garenne::handler::TaskError;
use garenne_database::{Database, DatabaseError, ErrorKind, Parameters, PostgresPool, Tables};

/// Time limit for reading a window, on both sides of the connection. A million readings take a few seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A [`ReadingStore`] over the table that [`PostgresSink`](crate::PostgresSink) writes. Connects on the first
/// query.
pub struct PostgresReadingStore {
    pool: PostgresPool,
    settings: String,
    exceeds_limit: String,
    readings: String,
}

impl PostgresReadingStore {
    /// The readings of the fleet with this prefix.
    pub fn new(database: Database, prefix: &str) -> Self {
        let range = format!(
            "FROM {}_readings WHERE device = $1 AND metric = $2 AND time >= $3 AND time < $4 ORDER BY time",
            Tables::new(prefix)
        );
        // The other plans read the whole range and sort it, however small the limit is.
        let settings = format!(
            "SET LOCAL statement_timeout = {}; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off",
            TIMEOUT.as_millis()
        );
        let [time_only, corrected]: [&str; 2] = [Flag::TimeAssumed.into(), Flag::Corrected.into()];
        Self {
            pool: PostgresPool::new(database),
            settings,
            exceeds_limit: format!("SELECT {range} OFFSET $5 LIMIT 1"),
            readings: format!(
                "SELECT time, value, unit, quality <@ ARRAY['{time_only}', '{corrected}'] {range} LIMIT $5"
            ),
        }
    }

    async fn read(&self, query: &WindowQuery) -> Result<StoredWindow, TaskError> {
        let mut connection = Connection(Some(self.pool.client().await.map_err(task_error)?));
        let answer = deadline(TIMEOUT, self.read_with(connection.get(), query)).await;
        let answer = answer.map_err(|elapsed| TaskError::retry(format!("reading the window: {elapsed}")))?;
        connection.keep();
        answer
    }

    async fn read_with(&self, client: &mut Object, query: &WindowQuery) -> Result<StoredWindow, TaskError> {
        let (from, to): (OffsetDateTime, OffsetDateTime) = (query.times.start.into(), query.times.end.into());
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let parameters: Parameters<'_, 5> = [&query.device, &query.metric, &from, &to, &limit];
        // Both statements see the same readings.
        let snapshot =
            client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
        let transaction = snapshot.start().await.map_err(task_error)?;
        transaction.batch_execute(&self.settings).await.map_err(task_error)?;
        let exceeds_limit = transaction.prepare_cached(&self.exceeds_limit).await.map_err(task_error)?;
        if transaction.query_opt(&exceeds_limit, &parameters).await.map_err(task_error)?.is_some() {
            return Err(query.too_many());
        }
        let readings = transaction.prepare_cached(&self.readings).await.map_err(task_error)?;
        let mut rows = pin!(transaction.query_raw(&readings, parameters).await.map_err(task_error)?);
        let mut window = StoredWindow::new(query.flagged);
        while let Some(row) = rows.try_next().await.map_err(task_error)? {
            let time: OffsetDateTime = row.get(0);
            window.push(time.into(), row.get(1), row.get(2), row.get(3)).map_err(TaskError::reject)?;
        }
        Ok(window)
    }
}

impl ReadingStore for PostgresReadingStore {
    fn window<'a>(&'a self, query: &'a WindowQuery) -> BoxFuture<'a, Result<StoredWindow, TaskError>> {
        Box::pin(self.read(query))
    }
}

/// A connection of the pool. It is closed if it is dropped during a statement, for the next user would wait for the
/// statement's end.
struct Connection(Option<Object>);

impl Connection {
    fn get(&mut self) -> &mut Object {
        self.0.as_mut().expect("it is only taken when it is dropped or kept")
    }

    /// Returns it to the pool.
    fn keep(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(Object::take(connection));
        }
    }
}

fn task_error(error: impl Into<DatabaseError>) -> TaskError {
    let error = error.into();
    // A device or metric that Postgres cannot hold. No retry can succeed.
    if error.kind == ErrorKind::Row { TaskError::reject(error) } else { TaskError::retry(error) }
}
