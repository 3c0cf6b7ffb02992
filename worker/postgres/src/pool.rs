//! The pool of connections to the server.

use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use garenne_common::{
    backoff::Backoff,
    exit::{Exit, Failure},
};
use tokio::time::Instant;
use tokio_postgres::{Config, config::Host};

use crate::{connector::Connector, database::Database, error::DatabaseError};

/// Time limit for opening, recycling or waiting for a connection. The sink repeats a batch that exceeds it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections of one pool, at most.
const MAX_CONNECTIONS: usize = 4;

/// A small pool that connects on first use.
#[derive(Clone)]
pub(super) struct PostgresPool {
    pool: Pool,
    address: String,
}

impl PostgresPool {
    pub(super) fn new(database: Database) -> Self {
        let client = database.config.clone();
        let address = address(&client);
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let limit = Some(CONNECT_TIMEOUT);
        let timeouts = Timeouts { wait: limit, create: limit, recycle: limit };
        let manager = Manager::from_connect(client, Connector::new(database), recycling);
        let pool = Pool::builder(manager)
            .max_size(MAX_CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .timeouts(timeouts)
            .build()
            .expect("timeouts need a runtime, which is given");
        Self { pool, address }
    }

    pub(super) async fn client(&self) -> Result<Object, DatabaseError> {
        self.pool.get().await.map_err(|error| match error {
            // An invalid parameter of the connection is no invalid value of a statement.
            PoolError::Backend(error) => DatabaseError { is_invalid_value: false, ..error.into() },
            other => DatabaseError::transient(other),
        })
    }

    /// Runs statements, and retries transient failures with back-off within `timeout`.
    ///
    /// # Errors
    /// The last failure; at once if it is not transient.
    pub(super) async fn run_with_retry(&self, statements: &str, timeout: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + timeout;
        let mut backoff = Backoff::default();
        loop {
            let attempt = async { Ok(self.client().await?.batch_execute(statements).await?) };
            let DatabaseError { detail, is_transient, .. } = match attempt.await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            let wait = backoff.next_wait();
            if !is_transient || Instant::now() + wait >= deadline {
                let problem = format!(
                    "cannot use Postgres at {}: {detail}; check that it is running and that the user may create tables \
                     (--postgres-url)",
                    self.address
                );
                return Err(Failure::new(Exit::Failed, problem));
            }
            let address = &self.address;
            tracing::warn!(address, error = detail, retry_in = ?wait, "Postgres unavailable, retrying");
            tokio::time::sleep(wait).await;
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
