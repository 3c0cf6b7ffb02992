//! The versions of the tables: checked at the start of a program, and changed by scripts.

use std::time::Duration;

use deadpool_postgres::Object;
use garenne_common::{
    backoff::Backoff,
    exit::{Exit, Failure},
};
use tokio::time::Instant;
use tokio_postgres::Client;

pub use crate::migrations::VERSION;
use crate::{
    columns::{self, Problem, texts},
    error::{DatabaseError, ErrorKind},
    migrations::{self, found_version},
    partitions,
    pool::PostgresPool,
    repair::repair,
    rollups,
    tables::Tables,
};

/// Key of the advisory lock of the one program that changes tables.
const SCHEMA_LOCK: i64 = 0x0067_6172_656e_6e65;

/// The migrations up to the tables of this version.
const COMMAND: &str = "run `garenne database migrate` as their owner";

/// Result of [`migrate`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// The version before; 0 if the tables had none.
    pub from: i32,
    /// The scripts that were applied, in order.
    pub applied: Vec<String>,
    /// What was missing and was created, one text each.
    pub repaired: Vec<String>,
}

/// Makes sure that the tables have the version that this program needs, and are complete, at its start. With
/// `may_migrate`, older ones are changed, if the user has the rights. Retries transient failures with back-off within
/// `timeout`, and a refused login whose URL is read again from a file. Other failures are returned at once.
pub async fn prepare(
    pool: &PostgresPool,
    tables: &Tables,
    may_migrate: bool,
    timeout: Duration,
) -> Result<(), Failure> {
    let deadline = Instant::now() + timeout;
    let mut backoff = Backoff::default();
    loop {
        let error = match prepare_once(pool, tables, may_migrate).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let is_refused = error.is_login_refused();
        let DatabaseError { detail, kind, .. } = error;
        let (wait, address) = (backoff.next_wait(), pool.address());
        if kind != ErrorKind::Transient || Instant::now() + wait >= deadline {
            let check = match kind {
                ErrorKind::Transient if !is_refused => "; check that it is running (--postgres-url)",
                _ => "",
            };
            let problem = format!("cannot use Postgres at {address}: {detail}{check}");
            return Err(Failure::new(Exit::Failed, problem));
        }
        tracing::warn!(address, error = detail, retry_in = ?wait, "Postgres unavailable, retrying");
        tokio::time::sleep(wait).await;
    }
}

async fn prepare_once(pool: &PostgresPool, tables: &Tables, may_migrate: bool) -> Result<(), DatabaseError> {
    let client = pool.client().await?;
    let found = found_version(&client, tables).await?;
    if found < VERSION && may_migrate {
        let log = |script: &str| tracing::info!(%tables, script, "tables changed");
        return match migrate(pool, tables, log).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_denied() => {
                let detail =
                    format!("{}, and this user may not change them: {error}", outdated(tables, found));
                Err(DatabaseError { detail: format!("{detail}; {COMMAND}"), ..error })
            }
            Err(error) => Err(error),
        };
    }
    check_version(tables, found)?;
    let problems = columns::problems(&client, tables, VERSION, false).await?;
    let (minor, missing): (Vec<_>, Vec<_>) = problems.into_iter().partition(Problem::is_minor);
    if !minor.is_empty() {
        tracing::warn!(%tables, "{}; {COMMAND}", texts(&minor));
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(DatabaseError::schema(format!("{}; {COMMAND}", texts(&missing))))
}

/// Refuses tables of another version than this program's.
fn check_version(tables: &Tables, found: i32) -> Result<(), DatabaseError> {
    if found > VERSION {
        let detail = format!(
            "the tables {tables}_* have version {found}, and this program needs {VERSION}: it is older than they are"
        );
        return Err(DatabaseError::schema(detail));
    }
    if found < VERSION {
        return Err(DatabaseError::schema(format!("{}; {COMMAND}", outdated(tables, found))));
    }
    Ok(())
}

fn outdated(tables: &Tables, found: i32) -> String {
    format!("the tables {tables}_* have version {found}, and version {VERSION} is needed")
}

/// Changes the tables to the version that this program needs, one program at a time, and creates what is missing of
/// them. `applied` is called with the name of each script. Complete tables of that version are left alone. A script
/// that fails has its changes undone. Fails if a table of this name is not one of Garenne's, if what is missing cannot
/// be created without a loss, and, transiently, while another program changes the tables.
pub async fn migrate(
    pool: &PostgresPool,
    tables: &Tables,
    applied: impl Fn(&str),
) -> Result<Migrated, DatabaseError> {
    // The lock ends with the connection, which is not used again.
    let mut connection = Object::take(pool.client().await?);
    let client: &mut Client = &mut connection;
    // A script takes as long as it has to, and does not wait long for a table in use: others would wait behind it.
    client
        .batch_execute(
            "SET statement_timeout = 0; SET lock_timeout = '10s'; SET client_min_messages = warning",
        )
        .await?;
    let locked = client.query_one("SELECT pg_try_advisory_lock($1)", &[&SCHEMA_LOCK]).await?;
    if !locked.get::<_, bool>(0) {
        return Err(DatabaseError::transient(format!("another program is changing the tables {tables}_*")));
    }
    let mut from = found_version(client, tables).await?;
    let mut repaired = Vec::new();
    if from == 0 {
        let problems = columns::problems(client, tables, 1, true).await?;
        if !problems.is_empty() {
            let detail = format!("{}; rename it, or use another prefix", texts(&problems));
            return Err(DatabaseError::schema(detail));
        }
        from = complete_version(client, tables).await?;
        if from > 0 {
            migrations::record(client, tables, from).await?;
            repaired.push(format!("created table {} for version {from}", migrations::history(tables)));
        }
    }
    if from > 0 {
        repaired.extend(repair(client, tables, from).await?);
    }
    let mut migrated = Migrated { from, applied: Vec::new(), repaired };
    for version in from + 1..=VERSION {
        let script = migrations::apply(client, tables, version).await?;
        applied(&script);
        migrated.applied.push(script);
    }
    check_version(tables, from.max(VERSION))?;
    migrated.repaired.extend(partitions::repair(client, tables).await?);
    Ok(migrated)
}

/// The version of tables without a history: that of this program; 0 if they are from before there was one. Fails if
/// they have had a history and are not complete.
async fn complete_version(client: &Client, tables: &Tables) -> Result<i32, DatabaseError> {
    let problems = columns::problems(client, tables, VERSION, false).await?;
    if problems.is_empty() {
        return Ok(VERSION);
    }
    let is_newer =
        "SELECT to_regclass($1 || '_series') IS NOT NULL OR to_regclass($1 || '_maintenance') IS NOT NULL";
    if !client.query_one(is_newer, &[&tables.to_string()]).await?.get::<_, bool>(0) {
        return Ok(0);
    }
    let (problems, history) = (texts(&problems), migrations::history(tables));
    Err(DatabaseError::schema(format!(
        "table {history} is missing, and so the version of tables that lack this: {problems}; restore one of them \
         from a backup"
    )))
}

/// Grants a role what a worker needs at run time: to read and write rows, and to add partitions. No right to change
/// tables.
pub async fn grant(pool: &PostgresPool, tables: &Tables, role: &str) -> Result<(), DatabaseError> {
    let names: Vec<_> = columns::table_names(tables).into_iter().collect();
    let grants = format!(
        "GRANT USAGE ON SCHEMA %1$I TO %2$I;
         GRANT SELECT, INSERT, UPDATE, DELETE ON {names} TO %2$I;
         GRANT SELECT ON {history} TO %2$I;
         GRANT EXECUTE ON FUNCTION {function}(timestamptz) TO %2$I",
        names = names.join(", "),
        history = migrations::history(tables),
        function = partitions::function(tables),
    );
    let client = pool.client().await?;
    let grants = client.query_one("SELECT format($1, current_schema(), $2::text)", &[&grants, &role]).await?;
    Ok(client.batch_execute(grants.get(0)).await?)
}

/// Problems of the tables, one text each: another version, what is missing or changed of tables, missing partitions,
/// series whose rollups cannot be computed.
pub async fn check(pool: &PostgresPool, tables: &Tables) -> Result<Vec<String>, DatabaseError> {
    let client = pool.client().await?;
    if let Err(error) = check_version(tables, found_version(&client, tables).await?) {
        return Ok(vec![error.detail]);
    }
    let problems = columns::problems(&client, tables, VERSION, false).await?;
    let mut problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    if problems.is_empty() {
        problems = partitions::problems(&client, tables).await?;
        problems.extend(rollups::failing(&client, tables).await?.iter().map(ToString::to_string));
    }
    Ok(problems)
}
