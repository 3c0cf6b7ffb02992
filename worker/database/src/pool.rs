//! The pool of connections to the server.

use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use garenne_common::resilience::{DeadlineExceeded, deadline};
use tokio_postgres::{Config, config::Host};

use crate::{
    connector::Connector,
    database::Database,
    error::{DatabaseError, ErrorKind, QueryResult},
};

/// Time limit for opening, recycling or waiting for a connection. The sink repeats a batch that exceeds it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections of a pool, at most, unless a number is given.
pub const DEFAULT_CONNECTIONS: usize = 4;

/// A connection of the pool. It returns to the pool when it is dropped.
pub type Connection = Object;

/// A small pool that connects on first use.
#[derive(Clone)]
pub struct PostgresPool {
    pool: Pool,
    address: String,
    /// Whether the URL comes from a file, which is read again for each connection.
    reads_url_again: bool,
}

impl PostgresPool {
    /// A pool of up to [`DEFAULT_CONNECTIONS`] for a database.
    pub fn new(database: Database) -> Self {
        Self::with_connections(database, DEFAULT_CONNECTIONS)
    }

    /// A pool of up to `connections`, at least one, for a database.
    pub fn with_connections(database: Database, connections: usize) -> Self {
        let client = database.config.clone();
        let address = address(&client);
        let reads_url_again = database.url.file().is_some();
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let limit = Some(CONNECT_TIMEOUT);
        let timeouts = Timeouts { wait: limit, create: limit, recycle: limit };
        let manager = Manager::from_connect(client, Connector::new(database), recycling);
        let pool = Pool::builder(manager)
            .max_size(connections.max(1))
            .runtime(Runtime::Tokio1)
            .timeouts(timeouts)
            .build()
            .expect("timeouts need a runtime, which is given");
        Self { pool, address, reads_url_again }
    }

    /// Host and port of the server.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A connection, which [`finish`] returns or closes after work with a time limit.
    pub async fn client(&self) -> Result<Connection, DatabaseError> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => {
                let error = DatabaseError::from(error);
                let kind = match error.kind {
                    // The file's next password may be accepted.
                    _ if error.is_login_refused() && self.reads_url_again => ErrorKind::Transient,
                    // No row of a statement is to blame for a refused connection.
                    ErrorKind::Row => ErrorKind::Schema,
                    kind => kind,
                };
                DatabaseError { kind, ..error }
            }
            PoolError::Timeout(_) => {
                DatabaseError::transient(format!("no connection within {CONNECT_TIMEOUT:?}"))
            }
            other => DatabaseError::transient(other),
        })
    }

    /// Does work on a connection, for at most `limit` as soon as there is one.
    pub async fn within<T>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&mut Connection) -> QueryResult<T>,
    ) -> Result<T, DatabaseError> {
        let mut client = self.client().await?;
        let outcome = deadline(limit, work(&mut client)).await;
        finish(client, outcome)
    }
}

/// The outcome of work on a connection that had a time limit. If the limit was exceeded, the connection is closed: a
/// late answer would be taken for that of the next statement. The error is transient then.
pub fn finish<T>(
    connection: Connection,
    outcome: Result<QueryResult<T>, DeadlineExceeded>,
) -> Result<T, DatabaseError> {
    match outcome {
        Ok(done) => Ok(done?),
        Err(elapsed) => {
            drop(Object::take(connection));
            Err(DatabaseError::transient(elapsed))
        }
    }
}

fn address(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "localhost".into(),
    };
    format!("{host}:{}", config.get_ports().first().unwrap_or(&5432))
}
