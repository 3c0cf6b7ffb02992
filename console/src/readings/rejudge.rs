//! Asks the workers to judge changed readings again.

use std::collections::BTreeMap;

use deadpool_postgres::Transaction;
use garenne_database::{QueryResult, Tables};
use time::OffsetDateTime;

/// Adds a row for each metric of a device with changed readings. A worker whose rules apply to it judges these readings
/// as if they had just been stored, and deletes the row.
pub(super) async fn request(
    transaction: &Transaction<'_>,
    tables: &Tables,
    device: &str,
    changed: &[(&str, OffsetDateTime)],
) -> QueryResult<()> {
    let mut by_metric: BTreeMap<&str, Vec<OffsetDateTime>> = BTreeMap::new();
    for &(metric, time) in changed {
        by_metric.entry(metric).or_default().push(time);
    }
    let insert = format!("INSERT INTO {tables}_rejudge (device, metric, times) VALUES ($1, $2, $3)");
    let statement = transaction.prepare_cached(&insert).await?;
    for (metric, times) in by_metric {
        transaction.execute(&statement, &[&device, &metric, &times]).await?;
    }
    Ok(())
}
