//! Removes what a policy no longer keeps ([`Retention`](crate::retention::Retention)).
//!
//! Nothing is removed that a stale rollup is to be computed from. Who changes readings writes their hours to the row of
//! the series as the last statement of the transaction; here that row, or the table of readings, is locked first.

use std::time::Duration;

use time::OffsetDateTime;

use crate::{
    error::{DatabaseError, QueryResult},
    pool::{Connection, PostgresPool},
    retention::{Expired, ExpiredRows, SeriesTable, maintenance, unsigned},
    rollups::{self, FailingSeries, Place, RollUp, Step},
    tables::Tables,
};

/// Rows that one statement deletes, so that it locks them for a moment only.
const CHUNK: u64 = 10_000;
/// Time limit of a step that computes rollups.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause while another program computes rollups, and how often.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSES: u32 = 50;

/// Computes stale rollups, so that their readings can be removed. Leaves them to another program that does. Returns the
/// series whose rollups cannot be computed. After an error, what was computed stays.
pub async fn roll_up(pool: &PostgresPool, tables: &Tables) -> Result<Vec<FailingSeries>, DatabaseError> {
    let (roll_up, mut place, mut pauses) = (RollUp::new(tables), Place::default(), 0);
    loop {
        match pool.within(STEP_TIMEOUT, async |client| roll_up.step(client, &mut place).await).await? {
            Step::Computed | Step::Failed(_) => {}
            Step::Busy if pauses < MAX_PAUSES => {
                pauses += 1;
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            Step::Busy | Step::End => break,
        }
    }
    failing(pool, tables).await
}

/// The series whose rollups cannot be computed, and whose readings are kept therefore.
pub async fn failing(pool: &PostgresPool, tables: &Tables) -> Result<Vec<FailingSeries>, DatabaseError> {
    Ok(rollups::failing(&*pool.client().await?, tables).await?)
}

/// Removes expired rows: a partition as a whole, others by and by. Returns the exact number of rows; it is less than
/// [`Expired::rows`] for a series with stale rollups. `None`: a partition with stale rollups is kept. After an error,
/// what was removed before stays removed.
pub async fn remove(
    pool: &PostgresPool,
    tables: &Tables,
    expired: &Expired,
) -> Result<Option<u64>, DatabaseError> {
    let mut client = maintenance(pool).await?;
    if let ExpiredRows::Partition { name, until } = &expired.what {
        return drop_partition(&mut client, tables, name, *until).await;
    }
    let mut removed = 0;
    loop {
        let rows = match &expired.what {
            ExpiredRows::Series { table, device, metric, before } => {
                series_chunk(&mut client, tables, *table, device, metric, *before).await?
            }
            ExpiredRows::Results { before } => {
                let delete = delete(tables, "results", "task_id", "started_at < $1");
                client.execute(&client.prepare_cached(&delete).await?, &[before]).await?
            }
            ExpiredRows::Partition { .. } => 0,
        };
        removed += rows;
        if rows < CHUNK {
            return Ok(Some(removed));
        }
    }
}

/// Deletes some rows of the history of lanes that are older than 14 days, which no policy keeps. Returns whether there
/// may be more.
pub async fn lane_history(client: &Connection, tables: &Tables) -> QueryResult<bool> {
    let old = "time < now() - interval '14 days'";
    let delete = delete(tables, "lane_history", "time, lane, step_seconds", old);
    Ok(client.execute(&client.prepare_cached(&delete).await?, &[]).await? >= CHUNK)
}

/// The statement that deletes some rows. Those that another transaction is changing stay.
fn delete(tables: &Tables, table: &str, key: &str, condition: &str) -> String {
    format!(
        "DELETE FROM {tables}_{table} WHERE {condition} AND ({key}) IN (
             SELECT {key} FROM {tables}_{table} WHERE {condition} LIMIT {CHUNK} FOR UPDATE SKIP LOCKED)"
    )
}

/// Deletes some rows of a series, before its first stale hour. From then on the rollups of these rows are final.
async fn series_chunk(
    client: &mut Connection,
    tables: &Tables,
    table: SeriesTable,
    device: &str,
    metric: &str,
    before: OffsetDateTime,
) -> Result<u64, DatabaseError> {
    let transaction = client.transaction().await?;
    let lock = format!(
        "SELECT least($3, date_bin('1 day', lower(stale), '2000-01-01Z')) FROM {tables}_series
         WHERE device = $1 AND metric = $2 FOR UPDATE"
    );
    let lock = transaction.prepare_cached(&lock).await?;
    let Some(row) = transaction.query_opt(&lock, &[&device, &metric, &before]).await? else { return Ok(0) };
    let before: OffsetDateTime = row.get(0);
    let condition = "device = $1 AND metric = $2 AND time < $3";
    let key = match table {
        SeriesTable::Readings => "device, metric, time",
        SeriesTable::Hours | SeriesTable::Days => "device, metric, time, unit",
    };
    let delete = transaction.prepare_cached(&delete(tables, table.name(), key, condition)).await?;
    let rows = transaction.execute(&delete, &[&device, &metric, &before]).await?;
    if table == SeriesTable::Readings && rows > 0 {
        let versions = format!("DELETE FROM {tables}_versions WHERE {condition}");
        let versions = transaction.prepare_cached(&versions).await?;
        transaction.execute(&versions, &[&device, &metric, &before]).await?;
    }
    let marks = match table {
        SeriesTable::Readings => Some(("pruned_before", "prunes")),
        SeriesTable::Hours => Some(("hours_pruned_before", "hour_prunes")),
        SeriesTable::Days => None,
    };
    if let Some((end, number)) = marks.filter(|_| rows > 0) {
        let mark = format!(
            "UPDATE {tables}_series SET {end} = greatest({end}, $3), {number} = {number} + 1
             WHERE device = $1 AND metric = $2"
        );
        let mark = transaction.prepare_cached(&mark).await?;
        transaction.execute(&mark, &[&device, &metric, &before]).await?;
    }
    transaction.commit().await?;
    Ok(rows)
}

/// Drops a partition and returns the number of its readings. `None` if a rollup of its readings or of older ones is stale.
async fn drop_partition(
    client: &mut Connection,
    tables: &Tables,
    name: &str,
    until: OffsetDateTime,
) -> Result<Option<u64>, DatabaseError> {
    let transaction = client.transaction().await?;
    // Nobody adds a reading to it after they are counted. Only those who write to this partition wait meanwhile; if one
    // of them already has a lock that the drop needs, Postgres ends one of the two, and both can be repeated.
    transaction.batch_execute(&format!("LOCK TABLE {name} IN SHARE MODE")).await?;
    let count = transaction.query_one(&format!("SELECT count(*) FROM {name}"), &[]).await?;
    let rows = unsigned(count.get(0));
    // A step locks a series before it reads readings. Here the order is the other one, so there must be none.
    let lock = format!(
        "SELECT pg_advisory_xact_lock(hashtextextended('{tables}_roll_up', 0));
         LOCK TABLE ONLY {tables}_readings IN ACCESS EXCLUSIVE MODE"
    );
    transaction.batch_execute(&lock).await?;
    // Writers of readings have committed, with the hours that they changed.
    let stale = format!("SELECT EXISTS (SELECT FROM {tables}_series WHERE stale && tstzrange(NULL, $1))");
    if transaction.query_one(&stale, &[&until]).await?.get(0) {
        return Ok(None);
    }
    let mark = format!(
        "UPDATE {tables}_series SET pruned_before = greatest(pruned_before, $1), prunes = prunes + 1"
    );
    transaction.execute(&mark, &[&until]).await?;
    transaction.batch_execute(&format!("DROP TABLE {name}")).await?;
    // An index would cost every replaced reading, and most tables of versions are small.
    transaction.execute(&format!("DELETE FROM {tables}_versions WHERE time < $1"), &[&until]).await?;
    transaction.commit().await?;
    Ok(Some(rows))
}
