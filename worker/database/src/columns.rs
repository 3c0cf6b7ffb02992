//! Which tables, columns, indexes and functions a version needs, and what of that a database lacks.

use std::collections::{BTreeMap, BTreeSet};

use derive_more::Display;
use tokio_postgres::Client;

use crate::{error::QueryResult, tables::Tables};

const TIME: &str = "timestamp with time zone";
const FLOAT: &str = "double precision";

/// Changes of a version to a table.
struct Columns {
    /// The end of the table's name.
    table: &'static str,
    /// The version of the tables.
    version: i32,
    /// The columns that rows are unique by. Empty if an earlier version brought them.
    key: &'static [&'static str],
    /// Names and types.
    columns: &'static [(&'static str, &'static str)],
}

const COLUMNS: [Columns; 31] = [
    Columns {
        table: "readings",
        version: 1,
        key: &["device", "metric", "time"],
        columns: &[
            ("device", "text"),
            ("metric", "text"),
            ("time", TIME),
            ("value", FLOAT),
            ("unit", "text"),
            ("raw", FLOAT),
            ("quality", "text[]"),
            ("task_id", "text"),
            ("worker", "text"),
            ("stored_at", TIME),
        ],
    },
    Columns {
        table: "results",
        version: 1,
        key: &["task_id"],
        columns: &[
            ("task_id", "text"),
            ("kind", "text"),
            ("attempt", "integer"),
            ("worker", "text"),
            ("started_at", TIME),
            ("duration_ms", FLOAT),
            ("output", "jsonb"),
        ],
    },
    Columns {
        table: "alarms",
        version: 1,
        key: &["id"],
        columns: &[
            ("id", "text"),
            ("device", "text"),
            ("metric", "text"),
            ("rule", "text"),
            ("since", TIME),
            ("upto", TIME),
            ("ended", TIME),
            ("value", FLOAT),
        ],
    },
    Columns {
        table: "notices",
        version: 1,
        key: &["id"],
        columns: &[("id", "text"), ("task_id", "text"), ("kind", "text"), ("payload", "jsonb"), ("at", TIME)],
    },
    Columns {
        table: "readings",
        version: 2,
        key: &[],
        columns: &[("raw_unit", "text"), ("calibration", "text")],
    },
    Columns {
        table: "series",
        version: 3,
        key: &["device", "metric"],
        columns: &[
            ("device", "text"),
            ("metric", "text"),
            ("last_time", TIME),
            ("last_value", FLOAT),
            ("last_unit", "text"),
            ("last_quality", "text[]"),
            ("stored_at", TIME),
        ],
    },
    Columns { table: "notices", version: 4, key: &[], columns: &[("trace", "text"), ("published_at", TIME)] },
    Columns { table: "alarms", version: 4, key: &[], columns: &[("withdrawn_at", TIME)] },
    Columns {
        table: "monitor",
        version: 4,
        key: &["name"],
        columns: &[("name", "text"), ("since", TIME), ("checked_at", TIME)],
    },
    Columns {
        table: "alarms",
        version: 6,
        key: &[],
        columns: &[
            ("severity", "text"),
            ("notified_at", TIME),
            ("clear_withheld", "boolean"),
            ("is_missing", "boolean"),
            ("closed_reason", "text"),
            ("closed_at", TIME),
            ("acked_at", TIME),
            ("acked_by", "text"),
            ("snoozed_until", TIME),
            ("snoozed_at", TIME),
            ("snoozed_by", "text"),
        ],
    },
    Columns {
        table: "maintenance",
        version: 6,
        key: &["id"],
        columns: &[
            ("id", "text"),
            ("device", "text"),
            ("starts", TIME),
            ("ends", TIME),
            ("reason", "text"),
            ("created_by", "text"),
            ("created_at", TIME),
            ("ended_by", "text"),
        ],
    },
    Columns {
        table: "rules",
        version: 6,
        key: &["name", "definition"],
        columns: &[
            ("name", "text"),
            ("definition", "text"),
            ("device", "text"),
            ("metric", "text"),
            ("describes", "text"),
            ("unit", "text"),
            ("webhook", "text"),
            ("remind_seconds", FLOAT),
            ("expected", "text[]"),
            ("first_seen", TIME),
            ("announced_at", TIME),
        ],
    },
    Columns {
        table: "rejudge",
        version: 6,
        key: &["id"],
        columns: &[
            ("id", "bigint"),
            ("device", "text"),
            ("metric", "text"),
            ("times", "timestamp with time zone[]"),
            ("at", TIME),
        ],
    },
    Columns {
        table: "series",
        version: 7,
        key: &[],
        columns: &[
            ("stale", "tstzmultirange"),
            ("pruned_before", TIME),
            ("prunes", "integer"),
            ("hours_pruned_before", TIME),
            ("hour_prunes", "integer"),
        ],
    },
    Columns { table: "notices", version: 8, key: &[], columns: &[("owner", "text")] },
    Columns { table: "series", version: 8, key: &[], columns: &[("pending", "jsonb"), ("pending_at", TIME)] },
    Columns {
        table: "series",
        version: 9,
        key: &[],
        columns: &[("rollup_error", "text"), ("rollup_failures", "integer"), ("rollup_failed_at", TIME)],
    },
    Columns { table: "alarms", version: 10, key: &[], columns: &[("notices", "integer")] },
    Columns {
        table: "notices",
        version: 10,
        key: &[],
        columns: &[("alarm", "text"), ("sequence", "integer")],
    },
    Columns {
        table: "notice_attempts",
        version: 10,
        key: &["id"],
        columns: &[("id", "text"), ("at", TIME), ("has_ended", "boolean")],
    },
    Columns { table: "series", version: 9, key: &[], columns: &[("counter", "jsonb")] },
    Columns { table: "rollups_hour", version: 9, key: &[], columns: &[("consumption", FLOAT)] },
    Columns { table: "rollups_day", version: 9, key: &[], columns: &[("consumption", FLOAT)] },
    Columns {
        table: "corrections",
        version: 11,
        key: &["id"],
        columns: &[
            ("id", "bigint"),
            ("command", "text"),
            ("action", "text"),
            ("device", "text"),
            ("metric", "text"),
            ("time", TIME),
            ("value", FLOAT),
            ("quality", "text[]"),
            ("was_value", FLOAT),
            ("was_unit", "text"),
            ("was_quality", "text[]"),
            ("raw", FLOAT),
            ("raw_unit", "text"),
            ("calibration", "text"),
            ("task_id", "text"),
            ("worker", "text"),
            ("stored_at", TIME),
            ("reason", "text"),
            ("corrected_by", "text"),
            ("corrected_at", TIME),
        ],
    },
    Columns {
        table: "readings",
        version: 12,
        key: &[],
        columns: &[("accepted_at", TIME), ("sequence", "integer")],
    },
    Columns {
        table: "versions",
        version: 12,
        key: &["device", "metric", "time", "task_id"],
        columns: &[
            ("device", "text"),
            ("metric", "text"),
            ("time", TIME),
            ("task_id", "text"),
            ("accepted_at", TIME),
            ("sequence", "integer"),
            ("value", FLOAT),
            ("unit", "text"),
            ("raw", FLOAT),
            ("raw_unit", "text"),
            ("calibration", "text"),
            ("quality", "text[]"),
            ("worker", "text"),
        ],
    },
    Columns { table: "readings", version: 13, key: &[], columns: &[("start_time", TIME)] },
    Columns { table: "series", version: 13, key: &[], columns: &[("sent_counter", "jsonb")] },
    Columns { table: "versions", version: 13, key: &[], columns: &[("start_time", TIME)] },
    Columns { table: "rollups_hour", version: 7, key: &ROLLUP_KEY, columns: &ROLLUP },
    Columns { table: "rollups_day", version: 7, key: &ROLLUP_KEY, columns: &ROLLUP },
];

/// Ends of the names of indexes that are not keys, and of functions, each with its version.
const INDEXES: [(&str, i32); 11] = [
    ("alarms_by_rule", 4),
    ("alarms_open", 4),
    ("notices_unpublished", 4),
    ("results_by_start", 5),
    ("alarms_current", 6),
    ("alarms_withheld", 6),
    ("maintenance_by_end", 6),
    ("series_failing", 9),
    ("notices_by_alarm", 10),
    ("corrections_by_reading", 11),
    ("corrections_deleted", 11),
];
const FUNCTIONS: [(&str, i32); 14] = [
    ("ensure_partition", 2),
    ("stale_with", 7),
    ("is_final_day", 7),
    ("is_final_hour", 7),
    ("hours_of_readings", 7),
    ("hourly", 7),
    ("daily", 7),
    ("roll_up", 7),
    ("mean", 9),
    ("is_usable", 9),
    ("counter_step", 9),
    ("counter_steps", 9),
    ("hours_after", 9),
    ("all_hours", 9),
];

const ROLLUP_KEY: [&str; 4] = ["device", "metric", "time", "unit"];

const ROLLUP: [(&str, &str); 10] = [
    ("device", "text"),
    ("metric", "text"),
    ("time", TIME),
    ("unit", "text"),
    ("count", "bigint"),
    ("mean", FLOAT),
    ("min", FLOAT),
    ("max", FLOAT),
    ("flagged", "bigint"),
    ("after_prunes", "integer"),
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
    #[display("index {_0} is missing")]
    NoIndex(String),
    #[display("function {_0} is missing")]
    NoFunction(String),
    Other(String),
}

/// The texts of problems.
pub(crate) fn texts(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A table as the database has it.
#[derive(Default)]
struct FoundTable {
    /// Whether rows can be written: a table, plain or partitioned.
    is_table: bool,
    /// Types by name.
    columns: BTreeMap<String, String>,
    /// Columns without which no row can be written.
    required: BTreeSet<String>,
    /// The columns of each unique index, sorted.
    keys: Vec<Vec<String>>,
}

/// The names of the tables of a version.
pub(crate) fn table_names(tables: &Tables) -> BTreeSet<String> {
    COLUMNS.iter().map(|columns| format!("{tables}_{}", columns.table)).collect()
}

/// What the tables lack for this version. With `existing_only`, only columns of tables that exist are looked at.
pub(crate) async fn problems(
    client: &Client,
    tables: &Tables,
    version: i32,
    existing_only: bool,
) -> QueryResult<Vec<Problem>> {
    let found = found_tables(client, tables).await?;
    let mut problems = Vec::new();
    let mut missing = BTreeSet::new();
    for wanted in COLUMNS.iter().filter(|columns| columns.version <= version) {
        let name = format!("{tables}_{}", wanted.table);
        let Some(table) = found.get(&name) else {
            if !existing_only && missing.insert(wanted.table) {
                problems.push(Problem::NoTable(name));
            }
            continue;
        };
        if !table.is_table {
            problems.push(Problem::Other(format!("{name} is not a table")));
            continue;
        }
        for (column, wanted) in wanted.columns {
            match table.columns.get(*column) {
                None => problems.push(Problem::NoColumn { table: name.clone(), column }),
                Some(found) if found != wanted => {
                    let detail = format!("table {name}: column {column} is {found} instead of {wanted}");
                    problems.push(Problem::Other(detail));
                }
                Some(_) => {}
            }
        }
        let mut key = wanted.key.to_vec();
        key.sort_unstable();
        if !key.is_empty() && !table.keys.iter().any(|columns| *columns == key) {
            let key = wanted.key.join(", ");
            problems.push(Problem::Other(format!("table {name} has no unique index on {key}")));
        }
    }
    for (name, table) in &found {
        let own = COLUMNS.iter().filter(|columns| *name == format!("{tables}_{}", columns.table));
        let own: BTreeSet<_> = own.flat_map(|columns| columns.columns).map(|(column, _)| *column).collect();
        for column in table.required.iter().filter(|column| !own.contains(column.as_str())) {
            let detail = format!("table {name}: column {column} is not null and has no default");
            problems.push(Problem::Other(detail));
        }
    }
    if !existing_only {
        let of_version = |names: &[(&str, i32)]| -> Vec<String> {
            let names = names.iter().filter(|(_, since)| *since <= version);
            names.map(|(name, _)| format!("{tables}_{name}")).collect()
        };
        let indexes = "SELECT name FROM unnest($1::text[]) AS name WHERE to_regclass(name) IS NULL";
        let indexes = client.query(indexes, &[&of_version(&INDEXES)]).await?;
        // A table comes with its indexes.
        let has_table =
            |index: &String| !missing.iter().any(|table| index.starts_with(&format!("{tables}_{table}_")));
        let indexes = indexes.iter().map(|row| row.get(0)).filter(has_table);
        problems.extend(indexes.map(Problem::NoIndex));
        let functions = "SELECT name FROM unnest($1::text[]) AS name WHERE NOT EXISTS (
                             SELECT FROM pg_proc WHERE proname = name::name AND pg_function_is_visible(oid))";
        let functions = client.query(functions, &[&of_version(&FUNCTIONS)]).await?;
        problems.extend(functions.iter().map(|row| Problem::NoFunction(row.get(0))));
    }
    Ok(problems)
}

/// The tables that exist, by name.
async fn found_tables(client: &Client, tables: &Tables) -> QueryResult<BTreeMap<String, FoundTable>> {
    let names: Vec<_> = table_names(tables).into_iter().collect();
    let columns = "
        SELECT name, relkind IN ('r', 'p'), attname::text, format_type(atttypid, atttypmod),
               attnotnull AND NOT atthasdef AND attidentity = ''
        FROM unnest($1::text[]) AS name
        JOIN pg_class AS c ON c.oid = to_regclass(name)
        JOIN pg_attribute ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped";
    let mut found: BTreeMap<String, FoundTable> = BTreeMap::new();
    for row in client.query(columns, &[&names]).await? {
        let table = found.entry(row.get(0)).or_default();
        table.is_table = row.get(1);
        table.columns.insert(row.get(2), row.get(3));
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
