//! Alarms and maintenance windows in the workers' database.

use std::time::Duration;

use garenne_common::{
    exit::{Exit, Failure},
    pattern::NamePattern,
};
use garenne_database::{Connection, DatabaseError, PostgresPool, QueryResult, Tables};
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio_postgres::{Row, types::ToSql};
use uuid::Uuid;

use super::query::{self, AlarmFilter, AlarmView};

/// Time limit of a statement.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest snooze and the longest maintenance window.
const MAX_TIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Most characters of a name or a reason.
const MAX_TEXT: usize = 500;
/// Most maintenance windows that have not ended, and that are listed.
const MAX_WINDOWS: i64 = 1_000;

#[derive(Clone)]
pub(crate) struct AlarmStore {
    pool: PostgresPool,
    tables: Tables,
}

/// Action of a person on an open alarm.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AlarmAction {
    Acknowledge,
    Snooze(Duration),
    Unsnooze,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct MaintenanceWindow {
    pub(crate) id: String,
    pub(crate) device: String,
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) starts: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) ends: OffsetDateTime,
    pub(crate) reason: String,
    pub(crate) created_by: String,
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) created_at: OffsetDateTime,
    pub(crate) ended_by: Option<String>,
}

impl AlarmStore {
    pub(crate) fn new(pool: PostgresPool, tables: Tables) -> Self {
        Self { pool, tables }
    }

    /// As [`query::alarms`].
    pub(crate) async fn list(&self, filter: &AlarmFilter) -> Result<Vec<AlarmView>, Failure> {
        self.run(async |client| query::alarms(client, &self.tables, filter).await).await
    }

    /// Changes an open alarm. Notices that are due then are stored by the workers.
    pub(crate) async fn change(&self, id: &str, action: AlarmAction, by: &str) -> Result<(), Failure> {
        let by = text("--by", by)?;
        let Self { tables, .. } = self;
        let set = match action {
            AlarmAction::Acknowledge => "acked_at = now(), acked_by = $2".to_owned(),
            AlarmAction::Snooze(time) => {
                let seconds = checked(time)?.as_secs_f64();
                format!(
                    "snoozed_until = now() + make_interval(secs => {seconds}), snoozed_at = now(), snoozed_by = $2"
                )
            }
            AlarmAction::Unsnooze => "snoozed_until = now(), snoozed_by = $2".to_owned(),
        };
        // An alarm that is not snoozed needs no notice because a snooze ended.
        let condition = match action {
            AlarmAction::Unsnooze => "AND snoozed_until > now()",
            _ => "",
        };
        let change = format!(
            "UPDATE {tables}_alarms SET {set} WHERE id = $1 AND ended IS NULL AND withdrawn_at IS NULL {condition}
             RETURNING id"
        );
        if !self.query(&change, &[&id, &by]).await?.is_empty() {
            return Ok(());
        }
        let find = format!("SELECT ended, withdrawn_at FROM {tables}_alarms WHERE id = $1");
        let problem = match self.query(&find, &[&id]).await?.first() {
            None => format!("there is no alarm {id:?}; `garenne alarms list --open` has the ids"),
            Some(row) => match (row.get::<_, Option<OffsetDateTime>>(0), row.get(1)) {
                (None, None::<OffsetDateTime>) => format!("alarm {id} is not snoozed"),
                (Some(ended), None) => format!("alarm {id} is over since {}", shown(ended)),
                (_, Some(at)) => format!("alarm {id} was withdrawn at {}", shown(at)),
            },
        };
        Err(Failure::new(Exit::Failed, problem))
    }

    /// Adds a maintenance window, from `starts` or now on, to `ends` or for a time. Returns its id.
    pub(crate) async fn add_maintenance(
        &self,
        device: &NamePattern,
        starts: Option<OffsetDateTime>,
        end: Result<OffsetDateTime, Duration>,
        reason: &str,
        by: &str,
    ) -> Result<String, Failure> {
        let (reason, by) = (text("--reason", reason)?, text("--by", by)?);
        let now = OffsetDateTime::now_utc();
        let begin = starts.unwrap_or(now);
        let time = match end {
            Ok(ends) => Duration::try_from(ends - begin).unwrap_or_default(),
            Err(time) => time,
        };
        let time = checked(time)?;
        let ends = begin + time;
        if ends <= now {
            let problem = format!("--to: {} is not in the future", shown(ends));
            return Err(Failure::new(Exit::Usage, problem));
        }
        let Self { tables, .. } = self;
        // By the database's clock, unless times are given.
        let add = format!(
            "INSERT INTO {tables}_maintenance (id, device, starts, ends, reason, created_by)
             SELECT $1, $2, coalesce($3, now()), coalesce($4, coalesce($3, now()) + make_interval(secs => $5)), $6, $7
             WHERE (SELECT count(*) FROM {tables}_maintenance WHERE ends > now()) < {MAX_WINDOWS} RETURNING id"
        );
        let (id, device, seconds) = (Uuid::now_v7().to_string(), device.as_str(), time.as_secs_f64());
        let ends = end.is_ok().then_some(ends);
        let parameters: [&(dyn ToSql + Sync); 7] = [&id, &device, &starts, &ends, &seconds, &reason, &by];
        if self.query(&add, &parameters).await?.is_empty() {
            let problem =
                format!("there are {MAX_WINDOWS} maintenance windows that have not ended; end some first");
            return Err(Failure::new(Exit::Failed, problem));
        }
        Ok(id)
    }

    /// Maintenance windows, the next first, or with those that have ended.
    pub(crate) async fn maintenance(&self, all: bool) -> Result<Vec<MaintenanceWindow>, Failure> {
        let which = if all { "ORDER BY starts DESC" } else { "WHERE ends > now() ORDER BY starts" };
        let query = format!(
            "SELECT id, device, starts, ends, reason, created_by, created_at, ended_by
             FROM {}_maintenance {which} LIMIT {MAX_WINDOWS}",
            self.tables
        );
        let window = |row: &Row| MaintenanceWindow {
            id: row.get(0),
            device: row.get(1),
            starts: row.get(2),
            ends: row.get(3),
            reason: row.get(4),
            created_by: row.get(5),
            created_at: row.get(6),
            ended_by: row.get(7),
        };
        Ok(self.query(&query, &[]).await?.iter().map(window).collect())
    }

    /// Ends a maintenance window now, or before it has begun.
    pub(crate) async fn end_maintenance(&self, id: &str, by: &str) -> Result<(), Failure> {
        let by = text("--by", by)?;
        let end = format!(
            "UPDATE {}_maintenance SET ends = greatest(starts, now()), ended_by = $2
             WHERE id = $1 AND ends > now() RETURNING id",
            self.tables
        );
        if self.query(&end, &[&id, &by]).await?.is_empty() {
            let problem = format!("there is no maintenance window {id:?} that has not ended");
            return Err(Failure::new(Exit::Failed, problem));
        }
        Ok(())
    }

    async fn query(&self, query: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Failure> {
        self.run(async |client| {
            let statement = client.prepare_cached(query).await?;
            client.query(&statement, parameters).await
        })
        .await
    }

    /// Runs a statement with a time limit.
    async fn run<T>(&self, statement: impl AsyncFnOnce(&Connection) -> QueryResult<T>) -> Result<T, Failure> {
        let failure = |error: DatabaseError| {
            let address = self.pool.address();
            Failure::new(Exit::Failed, format_args!("Postgres at {address}: {error}"))
        };
        self.pool.within(TIMEOUT, async |client| statement(client).await).await.map_err(failure)
    }
}

/// A time as it is printed.
pub(super) fn shown(time: OffsetDateTime) -> String {
    let time = time.replace_nanosecond(time.microsecond() * 1_000).unwrap_or(time);
    time.format(&Rfc3339).unwrap_or_default()
}

fn checked(time: Duration) -> Result<Duration, Failure> {
    if !(Duration::from_secs(1)..=MAX_TIME).contains(&time) {
        let problem = format!("{time:?}; expected 1 second to 30 days");
        return Err(Failure::new(Exit::Usage, problem));
    }
    Ok(time)
}

fn text<'a>(field: &str, text: &'a str) -> Result<&'a str, Failure> {
    if text.trim().is_empty() || text.chars().count() > MAX_TEXT || text.contains('\0') {
        let problem = format!("{field}: expected 1 to {MAX_TEXT} characters");
        return Err(Failure::new(Exit::Usage, problem));
    }
    Ok(text)
}
