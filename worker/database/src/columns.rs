//! Which tables, columns, indexes and functions a version needs, and what of that a database lacks or has otherwise.

use std::collections::{BTreeMap, BTreeSet};

use derive_more::Display;
use tokio_postgres::Client;

use crate::{
    definitions::{Definitions, NO_DEFAULT, differing_functions, found_default},
    error::QueryResult,
    tables::Tables,
};

/// What each version brought to a table: the version, the end of the table's name, the columns that its rows are unique by (none
/// if an earlier version brought them), and columns with their types.
#[rustfmt::skip]
const COLUMNS: [(i32, &str, &str, &str); 35] = [
    (1, "readings", "device, metric, time",
     "device text, metric text, time timestamptz, value float8, unit text, raw float8, quality text[], \
      task_id text, worker text, stored_at timestamptz"),
    (1, "results", "task_id",
     "task_id text, kind text, attempt integer, worker text, started_at timestamptz, duration_ms \
      float8, output jsonb"),
    (1, "alarms", "id",
     "id text, device text, metric text, rule text, since timestamptz, upto timestamptz, ended \
      timestamptz, value float8"),
    (1, "notices", "id", "id text, task_id text, kind text, payload jsonb, at timestamptz"),
    (2, "readings", "", "raw_unit text, calibration text"),
    (3, "series", "device, metric",
     "device text, metric text, last_time timestamptz, last_value float8, last_unit text, last_quality \
      text[], stored_at timestamptz"),
    (4, "notices", "", "trace text, published_at timestamptz"),
    (4, "alarms", "", "withdrawn_at timestamptz"),
    (4, "monitor", "name", "name text, since timestamptz, checked_at timestamptz"),
    (6, "alarms", "",
     "severity text, notified_at timestamptz, clear_withheld boolean, is_missing boolean, \
      closed_reason text, closed_at timestamptz, acked_at timestamptz, acked_by text, snoozed_until \
      timestamptz, snoozed_at timestamptz, snoozed_by text"),
    (6, "maintenance", "id",
     "id text, device text, starts timestamptz, ends timestamptz, reason text, created_by text, \
      created_at timestamptz, ended_by text"),
    (6, "rules", "name, definition",
     "name text, definition text, device text, metric text, describes text, unit text, webhook text, \
      remind_seconds float8, expected text[], first_seen timestamptz, announced_at timestamptz"),
    (6, "rejudge", "id", "id bigint, device text, metric text, times timestamptz[], at timestamptz"),
    (7, "series", "",
     "stale tstzmultirange, pruned_before timestamptz, prunes integer, hours_pruned_before \
      timestamptz, hour_prunes integer"),
    (7, "rollups_hour", "device, metric, time, unit",
     "device text, metric text, time timestamptz, unit text, count bigint, mean float8, min float8, \
      max float8, flagged bigint, after_prunes integer"),
    (7, "rollups_day", "device, metric, time, unit",
     "device text, metric text, time timestamptz, unit text, count bigint, mean float8, min float8, \
      max float8, flagged bigint, after_prunes integer"),
    (8, "notices", "", "owner text"),
    (8, "series", "", "pending jsonb, pending_at timestamptz"),
    (9, "series", "", "rollup_error text, rollup_failures integer, rollup_failed_at timestamptz"),
    (9, "series", "", "counter jsonb"),
    (9, "rollups_hour", "", "consumption float8"),
    (9, "rollups_day", "", "consumption float8"),
    (10, "alarms", "", "notices integer"),
    (10, "notices", "", "alarm text, sequence integer"),
    (10, "notice_attempts", "id", "id text, at timestamptz, has_ended boolean"),
    (11, "corrections", "id",
     "id bigint, command text, action text, device text, metric text, time timestamptz, value float8, \
      quality text[], was_value float8, was_unit text, was_quality text[], raw float8, raw_unit text, \
      calibration text, task_id text, worker text, stored_at timestamptz, reason text, corrected_by \
      text, corrected_at timestamptz"),
    (12, "readings", "", "accepted_at timestamptz, sequence integer"),
    (12, "versions", "device, metric, time, task_id",
     "device text, metric text, time timestamptz, task_id text, accepted_at timestamptz, sequence \
      integer, value float8, unit text, raw float8, raw_unit text, calibration text, quality text[], \
      worker text"),
    (13, "readings", "", "start_time timestamptz"),
    (13, "series", "", "sent_counter jsonb"),
    (13, "versions", "", "start_time timestamptz"),
    (14, "series", "", "declared_at timestamptz, declared_counter jsonb, newest_counter jsonb"),
    (14, "corrections", "", "start_time timestamptz"),
    (15, "lane_history", "time, lane, step_seconds",
     "time timestamptz, lane text, step_seconds integer, since timestamptz, upto timestamptz, settled bigint, \
      slot_seconds float8, busy_seconds float8, held_seconds float8, ready_seconds float8, ready_weight float8"),
    (16, "series", "", "declared_accepted timestamptz, declared_sequence integer, declared_task text"),
];

/// Something about the tables that is not as a version needs it. The names include the prefix.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub(crate) enum Problem {
    #[display("table {_0} is missing")]
    NoTable(String),
    #[display("table {table} has no column {column}")]
    NoColumn {
        table: String,
        column: &'static str,
    },
    /// What the column has in rows that give no value.
    #[display("table {table}: column {column} has {found} instead of {wanted}")]
    Default {
        table: String,
        column: &'static str,
        found: String,
        wanted: String,
    },
    #[display("table {table}: column {column} {} null", if *is_not_null { "may not be" } else { "may be" })]
    Null {
        table: String,
        column: &'static str,
        /// In the database.
        is_not_null: bool,
    },
    #[display("table {table} has no unique index on {key}")]
    NoKey {
        table: String,
        key: &'static str,
    },
    #[display("index {_0} is missing")]
    NoIndex(String),
    #[display("function {_0} is missing")]
    NoFunction(String),
    #[display("function {function} is changed: {differences}")]
    Changed {
        function: String,
        differences: String,
    },
    Other(String),
}

impl Problem {
    /// Whether a worker can do its work nevertheless.
    pub(crate) fn is_minor(&self) -> bool {
        match self {
            Self::Default { found, .. } => found != NO_DEFAULT,
            // Rows that have no value there could not be written.
            Self::Null { is_not_null, .. } => !is_not_null,
            Self::NoIndex(_) | Self::Changed { .. } | Self::Other(_) => true,
            _ => false,
        }
    }
}

pub(crate) fn texts(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A table as the database has it.
#[derive(Default)]
struct FoundTable {
    /// Whether rows can be written: a table, plain or partitioned.
    is_table: bool,
    /// Types by name, and what rows have that give no value.
    columns: BTreeMap<String, (String, String)>,
    not_null: BTreeSet<String>,
    /// Columns without which no row can be written.
    required: BTreeSet<String>,
    /// The columns of each unique index, sorted.
    keys: Vec<Vec<String>>,
}

/// The names of columns, and their types as the database shows them.
fn of_list(columns: &'static str) -> impl Iterator<Item = (&'static str, String)> {
    columns.split(", ").filter_map(|column| column.split_once(' ')).map(|(name, kind)| {
        let kind = kind.replace("timestamptz", "timestamp with time zone");
        (name, kind.replace("float8", "double precision"))
    })
}

pub(crate) fn table_names(tables: &Tables) -> BTreeSet<String> {
    COLUMNS.iter().map(|(_, table, ..)| format!("{tables}_{table}")).collect()
}

/// What the tables lack for this version. With `existing_only`, only columns of tables that exist are looked at.
pub(crate) async fn problems(
    client: &Client,
    tables: &Tables,
    version: i32,
    existing_only: bool,
) -> QueryResult<Vec<Problem>> {
    let definitions = Definitions::of_version(version, tables);
    let found = found_tables(client, tables).await?;
    let mut problems = Vec::new();
    let mut missing = BTreeSet::new();
    for (_, table, key, columns) in COLUMNS.iter().filter(|(since, ..)| *since <= version) {
        let name = format!("{tables}_{table}");
        let Some(own) = found.get(&name) else {
            if !existing_only && missing.insert(*table) {
                problems.push(Problem::NoTable(name));
            }
            continue;
        };
        if !own.is_table {
            problems.push(Problem::Other(format!("{name} is not a table")));
            continue;
        }
        for (column, wanted) in of_list(columns) {
            match own.columns.get(column) {
                None => problems.push(Problem::NoColumn { table: name.clone(), column }),
                Some((found, _)) if *found != wanted => {
                    let detail = format!("table {name}: column {column} is {found} instead of {wanted}");
                    problems.push(Problem::Other(detail));
                }
                Some((_, found)) => {
                    let default = definitions.defaults.get(&(name.clone(), column.to_owned()));
                    if let Some(wanted) = default.filter(|wanted| *wanted != found && !existing_only) {
                        let (table, found, wanted) = (name.clone(), found.clone(), wanted.clone());
                        problems.push(Problem::Default { table, column, found, wanted });
                    }
                    let is_key = COLUMNS
                        .iter()
                        .any(|(_, of, key, _)| of == table && key.split(", ").any(|it| it == column));
                    let wanted = is_key || definitions.not_null.contains(&(name.clone(), column.to_owned()));
                    let is_not_null = own.not_null.contains(column);
                    if is_not_null != wanted && !existing_only {
                        problems.push(Problem::Null { table: name.clone(), column, is_not_null });
                    }
                }
            }
        }
        let mut unique_by: Vec<_> = key.split(", ").collect();
        unique_by.sort_unstable();
        if !key.is_empty() && !own.keys.iter().any(|columns| *columns == unique_by) {
            problems.push(Problem::NoKey { table: name, key });
        }
    }
    for (name, table) in &found {
        let own = COLUMNS.iter().filter(|(_, table, ..)| *name == format!("{tables}_{table}"));
        let own: BTreeSet<_> = own.flat_map(|(.., columns)| of_list(columns)).map(|(name, _)| name).collect();
        for column in table.required.iter().filter(|column| !own.contains(column.as_str())) {
            let detail = format!("table {name}: column {column} is not null and has no default");
            problems.push(Problem::Other(detail));
        }
    }
    if !existing_only {
        let indexes = "SELECT name FROM unnest($1::text[]) AS name WHERE to_regclass(name) IS NULL";
        let indexes = client.query(indexes, &[&definitions.indexes.iter().collect::<Vec<_>>()]).await?;
        // A table comes with its indexes.
        let has_table =
            |index: &String| !missing.iter().any(|table| index.starts_with(&format!("{tables}_{table}_")));
        let indexes = indexes.iter().map(|row| row.get(0)).filter(has_table);
        problems.extend(indexes.map(Problem::NoIndex));
        let functions = differing_functions(client, &definitions).await?;
        problems.extend(functions.into_iter().map(|(function, differences)| match differences {
            None => Problem::NoFunction(function),
            Some(differences) => Problem::Changed { function, differences },
        }));
    }
    Ok(problems)
}

/// The tables that exist, by name.
async fn found_tables(client: &Client, tables: &Tables) -> QueryResult<BTreeMap<String, FoundTable>> {
    let names: Vec<_> = table_names(tables).into_iter().collect();
    let columns = "
        SELECT name, relkind IN ('r', 'p'), attname::text, format_type(atttypid, atttypmod),
               attnotnull AND NOT atthasdef AND attidentity = '', attidentity::text, pg_get_expr(adbin, adrelid),
               attnotnull
        FROM unnest($1::text[]) AS name
        JOIN pg_class AS c ON c.oid = to_regclass(name)
        JOIN pg_attribute ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum";
    let mut found: BTreeMap<String, FoundTable> = BTreeMap::new();
    for row in client.query(columns, &[&names]).await? {
        let table = found.entry(row.get(0)).or_default();
        table.is_table = row.get(1);
        table.columns.insert(row.get(2), (row.get(3), found_default(row.get(5), row.get(6))));
        if row.get(7) {
            table.not_null.insert(row.get(2));
        }
        if row.get(4) {
            table.required.insert(row.get(2));
        }
    }
    let keys = "
        SELECT name, (SELECT array_agg(attname::text ORDER BY attname) FROM pg_attribute
                      WHERE attrelid = indrelid AND attnum = ANY(indkey::int2[]))
        FROM unnest($1::text[]) AS name
        JOIN pg_index ON indrelid = to_regclass(name) AND indisunique AND indpred IS NULL AND indexprs IS NULL";
    for row in client.query(keys, &[&names]).await? {
        found.entry(row.get(0)).or_default().keys.push(row.get(1));
    }
    Ok(found)
}
