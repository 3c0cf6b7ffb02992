//! The server: where it is, how it is reached, and what is said where it is not.

use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use garenne_amqp::Backoff;
use garenne_common::exit::{Exit, HasExit};
use thiserror::Error;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;

use super::dial::{Database, Dial};

/// How long a connection may take; an attempt that takes longer is repeated with the batch.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why the sink could not be set up.
#[derive(Debug, Error)]
pub enum PostgresError {
    /// The URL cannot be read.
    #[error("postgres_url cannot be read: {0}; it looks like postgres://user:password@host:5432/database")]
    Url(tokio_postgres::Error),
    /// The URL asks for a way to connect that there is not.
    #[error(
        "sslmode {0:?} is none of disable, prefer, require and verify-full (the last two check the certificate and \
         the host's name)"
    )]
    Mode(String),
    /// Nobody answered, or the server refused.
    #[error(
        "no Postgres at {address}: {detail}; is it running, and may this user create tables? (--postgres-url)"
    )]
    Away {
        /// Host and port.
        address: String,
        /// What happened.
        detail: String,
    },
}

impl HasExit for PostgresError {
    fn exit(&self) -> Exit {
        match self {
            Self::Url(_) | Self::Mode(_) => Exit::Config,
            Self::Away { .. } => Exit::Failed,
        }
    }
}

/// A small pool that connects when it is first used.
#[derive(Clone)]
pub(super) struct Server {
    pool: Pool,
    address: String,
}

/// Why nothing could be done with it.
pub(super) struct Setback {
    pub(super) detail: String,
    /// Whether it may go better in a moment: nobody answered, or it is starting, stopping or full.
    passes: bool,
}

impl From<tokio_postgres::Error> for Setback {
    fn from(error: tokio_postgres::Error) -> Self {
        let passing = [
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::TOO_MANY_CONNECTIONS,
        ];
        Self { detail: explain(&error), passes: error.code().is_none_or(|code| passing.contains(code)) }
    }
}

impl Server {
    /// # Errors
    /// [`PostgresError::Url`] and [`PostgresError::Mode`].
    pub(super) fn new(database: Database) -> Result<Self, PostgresError> {
        let target = database.target()?;
        let (config, address) = (target.config.clone(), address(&target.config));
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let timeouts = Timeouts { wait: Some(PATIENCE), create: Some(PATIENCE), recycle: Some(PATIENCE) };
        let pool = Pool::builder(Manager::from_connect(config, Dial::new(database, target), recycling))
            .max_size(4)
            .runtime(Runtime::Tokio1)
            .timeouts(timeouts)
            .build()
            .expect("a runtime is given, which is all that build asks for");
        Ok(Self { pool, address })
    }

    pub(super) async fn client(&self) -> Result<Object, Setback> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => error.into(),
            other => Setback { detail: other.to_string(), passes: true },
        })
    }

    /// Runs statements, again and again within `patience` while the server is away or not ready.
    ///
    /// # Errors
    /// [`PostgresError::Away`], at once where waiting would not help.
    pub(super) async fn prepare(&self, statements: &str, patience: Duration) -> Result<(), PostgresError> {
        let until = Instant::now() + patience;
        let mut backoff = Backoff::default();
        loop {
            let attempt = async { Ok(self.client().await?.batch_execute(statements).await?) };
            let Setback { detail, passes } = match attempt.await {
                Ok(()) => return Ok(()),
                Err(setback) => setback,
            };
            let wait = backoff.next_wait();
            if !passes || Instant::now() + wait >= until {
                return Err(PostgresError::Away { address: self.address.clone(), detail });
            }
            tracing::warn!(address = self.address, detail, ?wait, "no Postgres yet");
            tokio::time::sleep(wait).await;
        }
    }
}

fn address(config: &tokio_postgres::Config) -> String {
    let host = match config.get_hosts().first() {
        Some(tokio_postgres::config::Host::Tcp(host)) => host.clone(),
        Some(tokio_postgres::config::Host::Unix(path)) => path.display().to_string(),
        None => "localhost".into(),
    };
    format!("{host}:{}", config.get_ports().first().unwrap_or(&5432))
}

/// The server's own message where there is one; the client's otherwise says only "db error".
pub(super) fn explain(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => error.message().to_owned(),
        None => std::error::Error::source(error)
            .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}")),
    }
}
