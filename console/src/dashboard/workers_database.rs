//! The workers' database, with one pool: read-only transactions with a time limit for stored readings, and the alarms.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::http::StatusCode;
use deadpool_postgres::Object;
use garenne_common::{exit::Failure, resilience::deadline};
use garenne_database::{Connection, DatabaseError, ErrorKind, PostgresPool, Tables, schema};
use garenne_operator::operator::Operator;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::Problem;
use crate::alarms::AlarmStore;

/// Transactions at once. Each may last as long as its client reads the answer.
const MAX_SNAPSHOTS: usize = 4;

/// Connections for the short statements of the alarms, which do not wait for the transactions.
const ALARM_CONNECTIONS: usize = 2;

/// How long a request waits for its transaction.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(5);

/// Time limit of each statement, on the server. It includes the time in which the client takes the rows.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit of the first answer, on this side.
pub(super) const TIMEOUT: Duration = Duration::from_secs(25);

/// The workers' database. Connects on the first request.
pub(super) struct WorkersDatabase {
    pool: PostgresPool,
    pub(super) tables: Tables,
    /// Whether the tables are known to have the version of this program.
    is_checked: AtomicBool,
    snapshots: Arc<Semaphore>,
}

impl WorkersDatabase {
    /// The database of the settings; [`None`] without `postgres_url`.
    pub(super) fn of(operator: &Operator) -> Result<Option<Self>, Failure> {
        if operator.settings.postgres_url.is_none() {
            return Ok(None);
        }
        let (pool, tables) = operator.database_with(MAX_SNAPSHOTS + ALARM_CONNECTIONS)?;
        let snapshots = Arc::new(Semaphore::new(MAX_SNAPSHOTS));
        Ok(Some(Self { pool, tables, is_checked: AtomicBool::new(false), snapshots }))
    }

    pub(super) async fn alarms(&self) -> Result<AlarmStore, Failure> {
        self.check().await?;
        Ok(AlarmStore::new(self.pool.clone(), self.tables.clone()))
    }

    /// Begins a transaction that sees one state of the database and can change nothing.
    pub(super) async fn snapshot(&self) -> Result<Snapshot, Problem> {
        let unavailable = |detail: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        let permit = deadline(SNAPSHOT_WAIT, Arc::clone(&self.snapshots).acquire_owned()).await;
        let permit = permit.map_err(|_| {
            unavailable(format!(
                "{MAX_SNAPSHOTS} requests read the database, none has ended within {SNAPSHOT_WAIT:?}"
            ))
        })?;
        self.check().await.map_err(|failure| unavailable(failure.to_string()))?;
        let snapshot = Snapshot {
            connection: Some(self.pool.client().await.map_err(problem)?),
            _permit: permit.expect("the semaphore is never closed"),
        };
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

    /// Checks the version of the tables, once.
    async fn check(&self) -> Result<(), Failure> {
        if !self.is_checked.load(Ordering::Relaxed) {
            schema::prepare(&self.pool, &self.tables, false, Duration::ZERO).await?;
            self.is_checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A transaction. Its connection is closed if it is dropped before its [end](Self::end): the next user would wait for
/// the statement.
pub(super) struct Snapshot {
    connection: Option<Connection>,
    /// Ends with the transaction.
    _permit: OwnedSemaphorePermit,
}

impl Snapshot {
    /// Returns the connection to the pool.
    pub(super) async fn end(mut self) {
        if self.batch_execute("ROLLBACK").await.is_ok() {
            drop(self.connection.take());
        }
    }
}

impl Deref for Snapshot {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("it is taken at the end only")
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
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
