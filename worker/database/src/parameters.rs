//! Rows as one array per column, the parameters of `unnest`.

use tokio_postgres::types::ToSql;

/// The parameters of a statement.
pub type Parameters<'a, const N: usize> = [&'a (dyn ToSql + Sync); N];

/// A column of rows, of any type.
pub type AnyColumn<'a> = Box<dyn ToSql + Send + Sync + 'a>;

/// A column of rows.
pub fn column<'a, R, T>(rows: &'a [R], value: impl FnMut(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// A column of rows, for parameters that several statements share.
pub fn any_column<'a, R, T>(rows: &'a [R], value: impl FnMut(&'a R) -> T) -> AnyColumn<'a>
where
    Vec<T>: ToSql + Send + Sync + 'a,
{
    Box::new(column(rows, value))
}

/// Columns, and `further` ones, as parameters.
pub fn parameters<'a>(
    columns: &'a [AnyColumn<'_>],
    further: &[&'a (dyn ToSql + Sync)],
) -> Vec<&'a (dyn ToSql + Sync)> {
    let columns = columns.iter().map(|column| &**column as &(dyn ToSql + Sync));
    columns.chain(further.iter().copied()).collect()
}
