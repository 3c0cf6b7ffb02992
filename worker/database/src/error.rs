//! Errors of statements.

use garenne_common::text::with_causes;
use thiserror::Error;
use tokio_postgres::error::{DbError, ErrorPosition, SqlState};

/// The result of a statement.
pub type QueryResult<T> = Result<T, tokio_postgres::Error>;

/// The meaning of a failure for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The server is away, is starting or stopping, or has too little of something. A retry may succeed.
    Transient,
    /// The server refuses a row of the statement: a value that it cannot hold, a constraint, a trigger. No retry can
    /// succeed, and the statement's other rows are not to blame.
    Row,
    /// The database is not as the program needs it: a table, a column or a right is missing. No retry succeeds until
    /// that is changed.
    Schema,
}

/// A failed connection or statement. The text is the server's message if there is one; the client's own text for it is
/// only "db error".
#[derive(Clone, Debug, Error)]
#[error("{detail}")]
pub struct DatabaseError {
    /// The failure.
    pub detail: String,
    /// Its meaning for the next attempt.
    pub kind: ErrorKind,
    /// The server's code, if the server reported the error.
    pub code: Option<SqlState>,
}

impl DatabaseError {
    /// An error of a statement or a connection.
    pub(crate) fn new(error: &tokio_postgres::Error) -> Self {
        let detail = error.as_db_error().map_or_else(|| with_causes(error), describe);
        let code = error.code().cloned();
        Self { detail, kind: code.as_ref().map_or(ErrorKind::Transient, |code| kind(code.code())), code }
    }

    /// A failure after which a retry may succeed.
    pub fn transient(error: impl ToString) -> Self {
        Self { detail: error.to_string(), kind: ErrorKind::Transient, code: None }
    }

    /// A database that is not as the program needs it.
    pub fn schema(detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), kind: ErrorKind::Schema, code: None }
    }

    /// Whether the server refused the login: the user or the password.
    pub(crate) fn is_login_refused(&self) -> bool {
        self.code.as_ref().is_some_and(|code| code.code().starts_with("28"))
    }

    /// Whether the user lacks a right.
    pub fn is_denied(&self) -> bool {
        self.code == Some(SqlState::INSUFFICIENT_PRIVILEGE)
    }
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::new(&error)
    }
}

/// The kind of a server's error, by its code (appendix A of Postgres' manual).
fn kind(code: &str) -> ErrorKind {
    match (&code[..2], code) {
        // A transaction that is to be run again; a lock that was not to be had.
        (_, "55P03" | "55006") => ErrorKind::Transient,
        // Connections, transactions, resources (disk, memory, connections), operators, the system.
        ("08" | "40" | "53" | "57" | "58" | "XX", _) => ErrorKind::Transient,
        // Values, constraints, limits such as an index entry's size, PL/pgSQL's RAISE.
        ("22" | "23" | "54" | "P0", _) => ErrorKind::Row,
        // SQL leaves classes that begin with 5 to 9 and I to Z to programs. Postgres has few of them: the others are
        // raised by triggers.
        ("55" | "72", _) => ErrorKind::Schema,
        (class, _) if class.starts_with(|first: char| matches!(first, '5'..='9' | 'I'..='Z')) => {
            ErrorKind::Row
        }
        _ => ErrorKind::Schema,
    }
}

/// The server's message, with the table, column and constraint, and the function that raised it, if it does not name
/// them.
fn describe(error: &DbError) -> String {
    let mut text = error.message().to_owned();
    let raised_in = error.where_().filter(|_| error.code().code().starts_with("P0"));
    let raised_in = raised_in.and_then(|context| context.lines().next());
    let places = [
        ("table", error.table()),
        ("column", error.column()),
        ("constraint", error.constraint()),
        ("raised in", raised_in),
    ];
    for (what, name) in places {
        if let Some(name) = name.filter(|name| !text.contains(name)) {
            text.push_str(&format!("; {what} {name}"));
        }
    }
    if let Some(ErrorPosition::Internal { query, .. }) = error.position() {
        text.push_str(&format!("; in {query}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_says_what_a_retry_can_do() {
        let by_kind = [
            (ErrorKind::Row, ["22021", "22P05", "23502", "23514", "54000", "P0001", "P0002", "RA001"]),
            (ErrorKind::Schema, ["42P01", "42703", "42501", "3F000", "25006", "55000", "0A000", "28P01"]),
            (ErrorKind::Transient, ["08006", "40001", "40P01", "53100", "53300", "57014", "57P03", "55P03"]),
        ];
        for (wanted, codes) in by_kind {
            for code in codes {
                assert_eq!(kind(code), wanted, "{code}");
            }
        }
    }
}
