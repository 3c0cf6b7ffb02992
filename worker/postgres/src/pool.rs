//! The pool of connections to the server.

use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use garenne_common::backoff::Backoff;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;

use crate::{
    connector::Connector,
    database::{ConnectConfig, Database},
    error::{PostgresError, error_detail},
};

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

/// A failed connection or statement.
pub(super) struct PoolFailure {
    pub(super) detail: String,
    /// Whether a retry may succeed: no answer, or the server is starting, stopping or out of connections.
    is_transient: bool,
}

impl From<tokio_postgres::Error> for PoolFailure {
    fn from(error: tokio_postgres::Error) -> Self {
        let transient = [
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::TOO_MANY_CONNECTIONS,
        ];
        Self {
            detail: error_detail(&error),
            is_transient: error.code().is_none_or(|code| transient.contains(code)),
        }
    }
}

impl PostgresPool {
    /// # Errors
    /// [`PostgresError::Url`] and [`PostgresError::Mode`].
    pub(super) fn new(database: Database) -> Result<Self, PostgresError> {
        let config = database.connect_config()?;
        let (client, address) = (config.client.clone(), address(&config));
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let timeouts = Timeouts {
            wait: Some(CONNECT_TIMEOUT),
            create: Some(CONNECT_TIMEOUT),
            recycle: Some(CONNECT_TIMEOUT),
        };
        let manager = Manager::from_connect(client, Connector::new(database, config), recycling);
        let pool = Pool::builder(manager)
            .max_size(MAX_CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .timeouts(timeouts)
            .build()
            .expect("timeouts need a runtime, which is given");
        Ok(Self { pool, address })
    }

    pub(super) async fn client(&self) -> Result<Object, PoolFailure> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => error.into(),
            other => PoolFailure { detail: other.to_string(), is_transient: true },
        })
    }

    /// Runs statements, and retries transient failures with back-off within `timeout`.
    ///
    /// # Errors
    /// [`PostgresError::Unavailable`], at once if the failure is not transient.
    pub(super) async fn run_with_retry(
        &self,
        statements: &str,
        timeout: Duration,
    ) -> Result<(), PostgresError> {
        let deadline = Instant::now() + timeout;
        let mut backoff = Backoff::default();
        loop {
            let attempt = async { Ok(self.client().await?.batch_execute(statements).await?) };
            let PoolFailure { detail, is_transient } = match attempt.await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            let wait = backoff.next_wait();
            if !is_transient || Instant::now() + wait >= deadline {
                return Err(PostgresError::Unavailable { address: self.address.clone(), detail });
            }
            let address = &self.address;
            tracing::warn!(address, error = detail, retry_in = ?wait, "Postgres unavailable, retrying");
            tokio::time::sleep(wait).await;
        }
    }
}

fn address(config: &ConnectConfig) -> String {
    let host = match config.client.get_hosts().first() {
        Some(tokio_postgres::config::Host::Tcp(host)) => host.clone(),
        Some(tokio_postgres::config::Host::Unix(path)) => path.display().to_string(),
        None => "localhost".into(),
    };
    format!("{host}:{}", config.client.get_ports().first().unwrap_or(&5432))
}
