//! Asks the workers to judge changed readings again.

use deadpool_postgres::Transaction;

use crate::{derived::Key, error::QueryResult, tables::Tables};

/// Adds a row for each series with changed readings. A worker whose rules apply to it judges these readings as if they had
/// just been stored, and deletes the row.
pub(crate) async fn request(
    transaction: &Transaction<'_>,
    tables: &Tables,
    changed: &[&Key<'_>],
) -> QueryResult<()> {
    let insert = format!(
        "INSERT INTO {tables}_rejudge (device, metric, times) SELECT device, metric, array_agg(DISTINCT time)
         FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS changed(device, metric, time) GROUP BY device, metric"
    );
    let statement = transaction.prepare_cached(&insert).await?;
    let (devices, metrics, times) = Key::columns(changed.iter().copied());
    transaction.execute(&statement, &[&devices, &metrics, &times]).await.map(drop)
}
