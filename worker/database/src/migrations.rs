//! The versions of the tables, and the scripts that lead from one to the next.
//!
//! A script never changes after its release: the history table has its checksum.

use std::iter::successors;

use refinery_core::{Error, Migration, Runner, Target};
use tokio_postgres::Client;

use crate::{
    error::{DatabaseError, QueryResult},
    tables::Tables,
};

/// Name and SQL of each script; `{p}` stands for the beginning of the tables' names.
const SCRIPTS: [(&str, &str); 16] = [
    ("V1__tables", include_str!("../migrations/V1__tables.sql")),
    ("V2__partitions", include_str!("../migrations/V2__partitions.sql")),
    ("V3__series", include_str!("../migrations/V3__series.sql")),
    ("V4__alerts", include_str!("../migrations/V4__alerts.sql")),
    ("V5__results", include_str!("../migrations/V5__results.sql")),
    ("V6__alarm_lifecycle", include_str!("../migrations/V6__alarm_lifecycle.sql")),
    ("V7__rollups", include_str!("../migrations/V7__rollups.sql")),
    ("V8__alarm_state", include_str!("../migrations/V8__alarm_state.sql")),
    ("V9__counters", include_str!("../migrations/V9__counters.sql")),
    ("V10__notice_order", include_str!("../migrations/V10__notice_order.sql")),
    ("V11__corrections", include_str!("../migrations/V11__corrections.sql")),
    ("V12__versions", include_str!("../migrations/V12__versions.sql")),
    ("V13__sent_counters", include_str!("../migrations/V13__sent_counters.sql")),
    ("V14__counter_declarations", include_str!("../migrations/V14__counter_declarations.sql")),
    ("V15__lane_history", include_str!("../migrations/V15__lane_history.sql")),
    ("V16__declaration_versions", include_str!("../migrations/V16__declaration_versions.sql")),
];

/// The version of the tables that this program needs.
pub const VERSION: i32 = SCRIPTS.len() as i32;

/// The version of the tables in the database; 0 if they have none.
pub(crate) async fn found_version(client: &Client, tables: &Tables) -> QueryResult<i32> {
    let history = history(tables);
    let exists = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&history]).await?;
    if !exists.get::<_, bool>(0) {
        return Ok(0);
    }
    let newest = format!("SELECT coalesce(max(version), 0)::int4 FROM {history}");
    Ok(client.query_one(&newest, &[]).await?.get(0))
}

/// The scripts up to this version, for tables whose names begin with `prefix`.
pub(crate) fn scripts(version: i32, prefix: &str) -> impl Iterator<Item = String> {
    SCRIPTS.iter().zip(1..=version).map(move |((_, sql), _)| sql.replace("{p}", prefix))
}

/// Applies the script that leads to `version`, in a transaction. Returns its name.
pub(crate) async fn apply(
    client: &mut Client,
    tables: &Tables,
    version: i32,
) -> Result<String, DatabaseError> {
    run(client, tables, Target::Version(version)).await
}

/// Records the scripts up to `version` as applied, for tables whose history is lost.
pub(crate) async fn record(client: &mut Client, tables: &Tables, version: i32) -> Result<(), DatabaseError> {
    run(client, tables, Target::FakeVersion(version)).await.map(drop)
}

async fn run(client: &mut Client, tables: &Tables, target: Target) -> Result<String, DatabaseError> {
    let prefix = tables.to_string();
    let migrations = SCRIPTS.map(|(name, sql)| {
        Migration::unapplied(name, &sql.replace("{p}", &prefix)).expect("the names of the scripts are valid")
    });
    let runner = Runner::new(&migrations).set_target(target);
    let mut runner = runner.set_abort_divergent(true);
    runner.set_migration_table_name(history(tables));
    let report = runner.run_async(client).await.map_err(database_error)?;
    let applied = report.applied_migrations().iter().map(ToString::to_string);
    Ok(applied.collect::<Vec<_>>().join(", "))
}

/// The table of applied scripts.
pub(crate) fn history(tables: &Tables) -> String {
    format!("{tables}_schema_history")
}

/// The server's error, if that is what stopped a script.
fn database_error(error: Error) -> DatabaseError {
    let causes = successors(std::error::Error::source(&error), |cause| cause.source());
    match causes.filter_map(|cause| cause.downcast_ref()).next() {
        Some(cause) => DatabaseError::new(cause),
        None => DatabaseError::schema(error.to_string()),
    }
}
