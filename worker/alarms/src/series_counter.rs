//! The counters of series, as the table of series has them.

use std::collections::HashMap;

use deadpool_postgres::Transaction;
use garenne_database::{QueryResult, Tables};
use garenne_protocol::sensor::{Counter, Unit};
use tokio_postgres::{Row, types::Json};

/// How the values of a counter differ, and in which unit they are stored.
pub(super) type SeriesCounter = (Counter, Option<Unit>);

/// The counters of series as they are stored, by device and metric. With `only_sent`, only those that readings declare.
pub(super) async fn stored(
    transaction: &Transaction<'_>,
    tables: &Tables,
    series: &[(&str, &str)],
    only_sent: bool,
) -> QueryResult<HashMap<(String, String), SeriesCounter>> {
    if series.is_empty() {
        return Ok(HashMap::new());
    }
    let select = format!(
        "SELECT device, metric, counter, last_unit FROM unnest($1::text[], $2::text[]) AS wanted(device, metric)
         JOIN {tables}_series USING (device, metric)
         WHERE counter IS NOT NULL AND (sent_counter IS NOT NULL OR NOT $3)"
    );
    let statement = transaction.prepare_cached(&select).await?;
    let (devices, metrics): (Vec<_>, Vec<_>) = series.iter().copied().unzip();
    let rows = transaction.query(&statement, &[&devices, &metrics, &only_sent]).await?;
    let counter = |row: &Row| {
        let Json(counter) = row.try_get(2).ok()?;
        let unit = row.get::<_, Option<&str>>(3).and_then(Unit::get);
        Some(((row.get(0), row.get(1)), (counter, unit)))
    };
    Ok(rows.iter().filter_map(counter).collect())
}
