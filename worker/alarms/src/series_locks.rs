//! Locks on series, so that one transaction at a time judges a series.

use std::collections::BTreeSet;

use deadpool_postgres::Transaction;
use garenne_database::{QueryResult, Tables};

use crate::notice::uuid;

/// Advisory locks of a fleet. Series share them: one lock per series would exhaust the server's lock table.
const LOCK_STRIPES: u64 = 256;

/// Locks series, given as device and metric, until the transaction ends. Must precede every write of the transaction:
/// two transactions that each wait for a row and a lock of the other would deadlock.
pub(super) async fn lock(
    transaction: &Transaction<'_>,
    tables: &Tables,
    series: &BTreeSet<(&str, &str)>,
) -> QueryResult<()> {
    if series.is_empty() {
        return Ok(());
    }
    let stripe = |(device, metric): &(&str, &str)| (hash(&[device, metric]) % LOCK_STRIPES) as i64;
    let stripes: BTreeSet<i64> = series.iter().map(stripe).collect();
    let stripes: Vec<_> = stripes.into_iter().collect();
    // The first key separates this fleet's locks from others in the database.
    let fleet_key = (hash(&[&format!("{tables}_readings")]) >> 33) as i32;
    let statement = transaction
        .prepare_cached(
            "SELECT pg_advisory_xact_lock($1::int4, stripe::int4) FROM unnest($2::int8[]) AS stripe",
        )
        .await?;
    transaction.execute(&statement, &[&fleet_key, &stripes]).await.map(drop)
}

fn hash(parts: &[&str]) -> u64 {
    uuid(parts).as_u64_pair().0
}
