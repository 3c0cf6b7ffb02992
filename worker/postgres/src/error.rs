//! Errors of statements.

use garenne_common::text::with_causes;
use thiserror::Error;
use tokio_postgres::error::SqlState;

/// The result of a statement.
pub(crate) type QueryResult<T> = Result<T, tokio_postgres::Error>;

/// A failed connection or statement. The text is the server's message if there is one; the client's own text for it is
/// only "db error".
#[derive(Debug, Error)]
#[error("{detail}")]
pub(crate) struct DatabaseError {
    pub(crate) detail: String,
    /// Whether a retry may succeed: no answer, or the server is starting, stopping or out of connections.
    pub(crate) is_transient: bool,
    /// Whether Postgres cannot hold a value of the statement; no retry can succeed.
    pub(crate) is_invalid_value: bool,
}

impl DatabaseError {
    pub(crate) fn transient(error: impl ToString) -> Self {
        Self { detail: error.to_string(), is_transient: true, is_invalid_value: false }
    }
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        let transient = [
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::TOO_MANY_CONNECTIONS,
        ];
        let detail = match error.as_db_error() {
            Some(error) => error.message().to_owned(),
            None => with_causes(&error),
        };
        Self {
            detail,
            is_transient: error.code().is_none_or(|code| transient.contains(code)),
            // Class 22 is SQL's "data exception".
            is_invalid_value: error.code().is_some_and(|code| code.code().starts_with("22")),
        }
    }
}
