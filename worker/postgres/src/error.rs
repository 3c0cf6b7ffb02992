//! Errors of the Postgres sink.

use garenne_common::exit::{Exit, HasExit};
use thiserror::Error;

/// The Postgres sink, or a reader of its tables, cannot be set up.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// The URL cannot be parsed.
    #[error("invalid postgres_url: {0}; expected postgres://user:password@host:5432/database")]
    Url(tokio_postgres::Error),
    /// The URL has an unsupported `sslmode`.
    #[error(
        "unknown sslmode {0:?}; expected disable, prefer, require or verify-full (the last two check the certificate \
         and the host name)"
    )]
    Mode(String),
    /// The server did not answer, or refused the connection or the tables.
    #[error(
        "cannot use Postgres at {address}: {detail}; check that it is running and that the user may create tables \
         (--postgres-url)"
    )]
    Unavailable {
        /// Host and port.
        address: String,
        /// The error of the server or its client.
        detail: String,
    },
}

impl HasExit for PostgresError {
    fn exit(&self) -> Exit {
        match self {
            Self::Url(_) | Self::Mode(_) => Exit::Config,
            _ => Exit::Failed,
        }
    }
}

/// The server's message if there is one; the client's own text for it is only "db error".
pub(crate) fn error_detail(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => error.message().to_owned(),
        None => std::error::Error::source(error)
            .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}")),
    }
}
