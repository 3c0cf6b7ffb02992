//! The monthly partitions of the table of readings.
//!
//! A function of the database adds them, with the rights of the tables' owner. Readings of a month without a partition
//! are in the default partition.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use time::{Date, Month, OffsetDateTime, UtcOffset};
use tokio::time::Instant;
use tokio_postgres::Client;

use crate::{
    error::{DatabaseError, QueryResult},
    pool::PostgresPool,
    tables::Tables,
};
use garenne_common::lock::lock;

/// How far back and ahead of now a partition is added, in years. Other readings stay in the default partition.
const YEARS_BACK: i32 = 10;
const YEARS_AHEAD: i32 = 1;
/// The pause after a failed attempt. Meanwhile the readings go to the default partition.
const RETRY_PAUSE: Duration = Duration::from_secs(60);
/// Time limit for one partition. The function itself waits two seconds for each lock.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The name of the function that adds a partition.
pub(crate) fn function(tables: &Tables) -> String {
    format!("{tables}_ensure_partition")
}

/// Adds partitions before readings of their months are stored, and those of this month and the next ahead.
pub struct Partitions {
    ensure: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The months that have been asked for.
    ensured: BTreeSet<(i32, u8)>,
    /// Not to be tried before.
    paused_until: Option<Instant>,
}

impl Partitions {
    /// The partitions of a fleet's table of readings.
    pub fn new(tables: &Tables) -> Self {
        let ensure = format!("SELECT {}($1)", function(tables));
        Self { ensure, state: Mutex::default() }
    }

    /// Makes sure that the months of these times, this month and the next have partitions. A failure is logged: the
    /// readings can be stored without.
    pub async fn ensure(&self, pool: &PostgresPool, times: impl Iterator<Item = OffsetDateTime>) {
        for month in self.missing(OffsetDateTime::now_utc(), times) {
            match self.add(pool, month).await {
                Ok(()) => {
                    lock(&self.state).ensured.insert(month);
                }
                Err(error) => {
                    let (year, number) = month;
                    let month = format!("{year}-{number:02}");
                    tracing::warn!(month, %error, retry_in = ?RETRY_PAUSE, "failed to add a partition of the readings");
                    lock(&self.state).paused_until = Some(Instant::now() + RETRY_PAUSE);
                    return;
                }
            }
        }
    }

    /// The months that have not been asked for; none during a pause.
    fn missing(
        &self,
        now: OffsetDateTime,
        times: impl Iterator<Item = OffsetDateTime>,
    ) -> BTreeSet<(i32, u8)> {
        let state = lock(&self.state);
        if state.paused_until.is_some_and(|until| Instant::now() < until) {
            return BTreeSet::new();
        }
        let (this_month, possible) = (month(now), now.year() - YEARS_BACK..=now.year() + YEARS_AHEAD);
        let ahead = [this_month, next(this_month)];
        let months = ahead.into_iter().chain(times.map(month));
        months.filter(|month| possible.contains(&month.0) && !state.ensured.contains(month)).collect()
    }

    async fn add(&self, pool: &PostgresPool, month: (i32, u8)) -> Result<(), DatabaseError> {
        let first =
            Month::try_from(month.1).ok().and_then(|name| Date::from_calendar_date(month.0, name, 1).ok());
        let Some(first) = first else { return Ok(()) };
        // A time in the middle, so that the first month and the last one of the limits count as a whole.
        let at = first.midnight().assume_utc() + time::Duration::days(14);
        pool.within(TIMEOUT, async |client| client.query_one(&self.ensure, &[&at]).await.map(drop)).await
    }
}

/// Year and number of a month in UTC.
fn month(time: OffsetDateTime) -> (i32, u8) {
    let date = time.to_offset(UtcOffset::UTC);
    (date.year(), u8::from(date.month()))
}

fn next((year, month): (i32, u8)) -> (i32, u8) {
    if month == 12 { (year + 1, 1) } else { (year, month + 1) }
}

/// What the table of readings lacks.
struct Lack {
    /// Such as `default partition`.
    what: &'static str,
    /// A time in the month of the partition, as SQL; `None` for that of rows that no other one has.
    at: Option<&'static str>,
    /// How to attach a table of the partition's name that is none.
    attach: Option<String>,
}

impl Lack {
    fn problem(&self, tables: &Tables) -> String {
        let problem = format!("table {tables}_readings has no {}", self.what);
        match &self.attach {
            None => problem,
            Some(attach) => format!(
                "{problem}, because a table of its name is detached: attach it with `{attach}`, or rename it and migrate"
            ),
        }
    }
}

/// Problems of the partitions, one text each.
pub(crate) async fn problems(client: &Client, tables: &Tables) -> QueryResult<Vec<String>> {
    Ok(lacks(client, tables).await?.iter().map(|lack| lack.problem(tables)).collect())
}

/// Adds what is missing of the partitions. Returns what was added, one text each. Fails if a partition is detached.
pub(crate) async fn repair(client: &Client, tables: &Tables) -> Result<Vec<String>, DatabaseError> {
    let mut done = Vec::new();
    for lack in lacks(client, tables).await? {
        // Its rows would be in no partition, or in the way of those that come.
        if lack.attach.is_some() {
            return Err(DatabaseError::schema(lack.problem(tables)));
        }
        let is_new = match lack.at {
            None => {
                let create =
                    format!("CREATE TABLE {tables}_readings_default PARTITION OF {tables}_readings DEFAULT");
                client.batch_execute(&create).await.map(|()| true)?
            }
            Some(at) => client.query_one(&format!("SELECT {}({at})", function(tables)), &[]).await?.get(0),
        };
        if is_new {
            done.push(format!("created the {} of table {tables}_readings", lack.what));
        }
    }
    Ok(done)
}

async fn lacks(client: &Client, tables: &Tables) -> QueryResult<Vec<Lack>> {
    let mut lacks = Vec::new();
    // A table that is partitioned by hashes has a place for every row.
    let default = "SELECT partdefid <> 0 OR partstrat = 'h' FROM pg_partitioned_table WHERE partrelid = to_regclass($1)";
    let default = client.query_opt(default, &[&format!("{tables}_readings")]).await?;
    if default.is_some_and(|row| !row.get::<_, bool>(0)) {
        let attach = attach(client, tables, "'default'", "'DEFAULT'").await?;
        lacks.push(Lack { what: "default partition", at: None, attach });
    }
    // A partition covers a time if the time satisfies its constraint.
    let partitions = format!(
        "SELECT pg_get_partition_constraintdef(inhrelid) FROM pg_inherits
         WHERE inhparent = to_regclass('{tables}_readings')
         AND inhrelid NOT IN (SELECT partdefid FROM pg_partitioned_table WHERE partrelid = inhparent)"
    );
    let rows = client.query(&partitions, &[]).await?;
    let constraints: Vec<_> = rows.iter().filter_map(|row| row.get::<_, Option<&str>>(0)).collect();
    for (what, at) in [
        ("partition for this month", "now()"),
        ("partition for the next month", "now() + interval '1 month'"),
    ] {
        let covered =
            constraints.iter().map(|constraint| format!("({constraint})")).collect::<Vec<_>>().join(" OR ");
        let covered = if covered.is_empty() { "false".to_owned() } else { covered };
        let query = format!("SELECT {covered} FROM (SELECT {at} AS time) AS reading");
        if !client.query_one(&query, &[]).await?.get::<_, bool>(0) {
            let month = format!("date_trunc('month', ({at}) AT TIME ZONE 'UTC')");
            let name = format!("to_char({month}, 'YYYY_MM')");
            let day = |day: &str| format!("to_char({day}, 'YYYY-MM-DD\"Z\"')");
            let (first, next) = (day(&month), day(&format!("{month} + interval '1 month'")));
            let bounds = format!("format('FOR VALUES FROM (%L) TO (%L)', {first}, {next})");
            let attach = attach(client, tables, &name, &bounds).await?;
            lacks.push(Lack { what, at: Some(at), attach });
        }
    }
    Ok(lacks)
}

/// How to attach the partition of this name, if a table has the name and is none. Name and bounds are SQL.
async fn attach(client: &Client, tables: &Tables, name: &str, bounds: &str) -> QueryResult<Option<String>> {
    let detached = format!(
        "SELECT concat('ALTER TABLE {tables}_readings ATTACH PARTITION ', relname, ' ', {bounds}) FROM pg_class
         WHERE oid = to_regclass('{tables}_readings_' || {name}) AND NOT relispartition"
    );
    Ok(client.query_opt(&detached, &[]).await?.map(|row| row.get(0)))
}
