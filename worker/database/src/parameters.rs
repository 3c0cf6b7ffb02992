//! Rows as one array per column, the parameters of `unnest`.

use tokio_postgres::types::ToSql;

/// The parameters of a statement.
pub type Parameters<'a, const N: usize> = [&'a (dyn ToSql + Sync); N];

/// A column of rows.
pub fn column<'a, R, T>(rows: &'a [R], value: impl FnMut(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}
