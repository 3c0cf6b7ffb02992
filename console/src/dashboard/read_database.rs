//! Stored readings, in read-only transactions with a time limit.

use std::{
    ops::Deref,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use axum::http::StatusCode;
use deadpool_postgres::Object;
use garenne_common::resilience::deadline;
use garenne_database::{Connection, DatabaseError, ErrorKind, PostgresPool, Tables, schema};

use super::problem::Problem;

/// Time limit of each statement, on the server. It includes the time in which the client takes the rows.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit of the first answer, on this side.
pub(super) const TIMEOUT: Duration = Duration::from_secs(25);

/// The workers' database, as the dashboard reads it. Connects on the first request.
pub(super) struct ReadDatabase {
    pool: PostgresPool,
    pub(super) tables: Tables,
    /// Whether the tables are known to have the version of this program.
    is_checked: AtomicBool,
}

impl ReadDatabase {
    pub(super) fn new((pool, tables): (PostgresPool, Tables)) -> Self {
        Self { pool, tables, is_checked: AtomicBool::new(false) }
    }

    /// Begins a transaction that sees one state of the database and can change nothing.
    pub(super) async fn snapshot(&self) -> Result<Snapshot, Problem> {
        if !self.is_checked.load(Ordering::Relaxed) {
            schema::prepare(&self.pool, &self.tables, false, Duration::ZERO)
                .await
                .map_err(|failure| Problem::new(StatusCode::SERVICE_UNAVAILABLE, failure.to_string()))?;
            self.is_checked.store(true, Ordering::Relaxed);
        }
        let snapshot = Snapshot(Some(self.pool.client().await.map_err(problem)?));
        // The other plans read a whole period and sort it, however small the limit is. Compiling one takes longer than a
        // limited answer.
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = {};
             SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off",
            STATEMENT_TIMEOUT.as_millis()
        );
        in_time(snapshot.batch_execute(&begin)).await?;
        Ok(snapshot)
    }
}

/// A transaction. Its connection is closed if it is dropped before its [end](Self::end): the next user would wait for
/// the statement.
pub(super) struct Snapshot(Option<Connection>);

impl Snapshot {
    /// Returns the connection to the pool.
    pub(super) async fn end(mut self) {
        if self.batch_execute("ROLLBACK").await.is_ok() {
            drop(self.0.take());
        }
    }
}

impl Deref for Snapshot {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0.as_ref().expect("it is taken at the end only")
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(Object::take(connection));
        }
    }
}

/// Runs a statement with a time limit.
pub(super) async fn in_time<T>(
    statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Problem> {
    match deadline(TIMEOUT, statement).await {
        Ok(done) => done.map_err(|error| problem(error.into())),
        Err(elapsed) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, elapsed.to_string())),
    }
}

fn problem(error: DatabaseError) -> Problem {
    // A name that Postgres cannot hold.
    let status = match error.kind {
        ErrorKind::Row => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    Problem::new(status, format!("Postgres: {error}"))
}
