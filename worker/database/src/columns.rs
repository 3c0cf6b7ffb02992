//! Which columns the tables need, and what of that a database lacks.

use std::collections::{BTreeMap, BTreeSet};

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

const COLUMNS: [Columns; 19] = [
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
    Columns { table: "rollups_hour", version: 7, key: &ROLLUP_KEY, columns: &ROLLUP },
    Columns { table: "rollups_day", version: 7, key: &ROLLUP_KEY, columns: &ROLLUP },
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

/// The columns that the tables lack for this version, one text each. With `exist_only`, tables that do not exist are no
/// problem.
pub(crate) async fn problems(
    client: &Client,
    tables: &Tables,
    version: i32,
    existing_only: bool,
) -> QueryResult<Vec<String>> {
    let found = found_tables(client, tables).await?;
    let mut problems = Vec::new();
    let mut missing = BTreeSet::new();
    for wanted in COLUMNS.iter().filter(|columns| columns.version <= version) {
        let name = format!("{tables}_{}", wanted.table);
        let Some(table) = found.get(&name) else {
            if !existing_only && missing.insert(name.clone()) {
                problems.push(format!("table {name} is missing"));
            }
            continue;
        };
        if !table.is_table {
            problems.push(format!("{name} is not a table"));
            continue;
        }
        for (column, wanted) in wanted.columns {
            match table.columns.get(*column) {
                None => problems.push(format!("table {name} has no column {column}")),
                Some(found) if found != wanted => {
                    problems.push(format!("table {name}: column {column} is {found} instead of {wanted}"));
                }
                Some(_) => {}
            }
        }
        let mut key = wanted.key.to_vec();
        key.sort_unstable();
        if !key.is_empty() && !table.keys.iter().any(|columns| *columns == key) {
            problems.push(format!("table {name} has no unique index on {}", wanted.key.join(", ")));
        }
    }
    for (name, table) in &found {
        let own = COLUMNS.iter().filter(|columns| *name == format!("{tables}_{}", columns.table));
        let own: BTreeSet<_> = own.flat_map(|columns| columns.columns).map(|(column, _)| *column).collect();
        for column in table.required.iter().filter(|column| !own.contains(column.as_str())) {
            problems.push(format!("table {name}: column {column} is not null and has no default"));
        }
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
