//! Creates what is missing of the tables of a version, and restores what was changed.
//!
//! The scripts are the only definition of the tables. They are run with another prefix, in a transaction. Missing tables are
//! renamed from the result, columns, defaults, indexes and functions become as they are there, and the rest of it is dropped.

use tokio_postgres::{Client, Transaction, error::SqlState};

use crate::{
    columns::{self, Problem, texts},
    error::{DatabaseError, QueryResult},
    migrations, partitions,
    tables::Tables,
};

/// Tables whose rows are computed from each other.
const COMPUTED: [&str; 4] = ["readings", "series", "rollups_hour", "rollups_day"];

/// Columns that are null with a meaning, so that rows cannot do without their values: every alarm would be open, every
/// notice would be published again, every reading would be a derived one.
const MEANINGFUL: [(&str, &str); 5] = [
    ("alarms", "ended"),
    ("alarms", "value"),
    ("alarms", "withdrawn_at"),
    ("notices", "published_at"),
    ("readings", "raw"),
];

/// Creates what is missing of the tables of this version, and restores what was changed. Returns what was done, one
/// text each. Changes nothing if rows would lose what cannot be computed again.
pub(crate) async fn repair(
    client: &mut Client,
    tables: &Tables,
    version: i32,
) -> Result<Vec<String>, DatabaseError> {
    let problems = columns::problems(client, tables, version, false).await?;
    if problems.is_empty() {
        return Ok(Vec::new());
    }
    let transaction = client.transaction().await?;
    let done = Repair { transaction: &transaction, tables, model: format!("{tables}_new") }
        .run(&problems, version)
        .await?;
    transaction.commit().await?;
    let left = columns::problems(client, tables, version, false).await?;
    if left.is_empty() {
        return Ok(done);
    }
    let done = if done.is_empty() { String::new() } else { format!("{}; ", done.join(", ")) };
    Err(DatabaseError::schema(format!("{done}not repaired, change it by hand: {}", texts(&left))))
}

struct Repair<'a> {
    transaction: &'a Transaction<'a>,
    tables: &'a Tables,
    /// The prefix of complete, empty tables.
    model: String,
}

impl Repair<'_> {
    async fn run(&self, problems: &[Problem], version: i32) -> Result<Vec<String>, DatabaseError> {
        self.create_model(version).await?;
        self.refuse_losses(problems).await?;
        // A function may call one that is created after it.
        self.transaction.batch_execute("SET LOCAL check_function_bodies = off").await?;
        let mut done = Vec::new();
        // Tables before their indexes, and before functions, whose parameters have the types of tables.
        for problem in problems {
            done.extend(self.create(problem).await?);
        }
        self.drop_model().await?;
        let names = |table: &str, wanted: &str| *table == format!("{}_{wanted}", self.tables);
        if problems.iter().any(|problem| matches!(problem, Problem::NoTable(table) if names(table, "series")))
        {
            self.fill_series().await?;
        }
        let is_computed = |problem: &Problem| match problem {
            Problem::NoTable(table) | Problem::NoColumn { table, .. } => {
                COMPUTED.iter().any(|name| names(table, name))
            }
            // What it computed may be wrong.
            Problem::Changed { function, .. } => *function != partitions::function(self.tables),
            _ => false,
        };
        if version >= 7 && problems.iter().any(is_computed) {
            self.compute_again().await?;
        }
        Ok(done)
    }

    async fn create_model(&self, version: i32) -> Result<(), DatabaseError> {
        let model = &self.model;
        let found = "SELECT relname::text FROM pg_class
                     WHERE starts_with(relname::text, $1 || '_') AND pg_table_is_visible(oid) LIMIT 1";
        if let Some(row) = self.transaction.query_opt(found, &[model]).await? {
            let name: String = row.get(0);
            let detail = format!("the prefix {model}_ is needed for the repair: rename or remove {name}");
            return Err(DatabaseError::schema(detail));
        }
        for script in migrations::scripts(version, model) {
            self.transaction.batch_execute(&script).await?;
        }
        Ok(())
    }

    /// Refuses columns that rows cannot do without. A table without rows gets them.
    async fn refuse_losses(&self, problems: &[Problem]) -> Result<(), DatabaseError> {
        let mut lost = Vec::new();
        for problem in problems {
            let Problem::NoColumn { table, column } = problem else { continue };
            let needed = "SELECT attnotnull AND NOT atthasdef AND attidentity = '' FROM pg_attribute
                          WHERE attrelid = to_regclass($1) AND attname = $2";
            let needed = self.transaction.query_one(needed, &[&self.in_model(table), column]).await?;
            let is_meaningful = MEANINGFUL
                .iter()
                .any(|(name, of)| of == column && *table == format!("{}_{name}", self.tables));
            if !is_meaningful && !needed.get::<_, bool>(0) {
                continue;
            }
            let has_rows = format!("SELECT EXISTS (SELECT FROM {table})");
            if self.transaction.query_one(&has_rows, &[]).await?.get(0) {
                lost.push(format!(
                    "the values of column {column} of table {table} are lost, and its rows cannot do without: restore \
                     the table from a backup, or set it aside with `ALTER TABLE {table} RENAME TO {table}_lost` and \
                     migrate again, which creates an empty one"
                ));
            }
        }
        if lost.is_empty() { Ok(()) } else { Err(DatabaseError::schema(lost.join("; "))) }
    }

    /// Creates what is missing, or restores what was changed. Returns what was done.
    async fn create(&self, problem: &Problem) -> Result<Option<String>, DatabaseError> {
        let (model, tables) = (&self.model, self.tables.to_string());
        let sql = match problem {
            // With its partitions, indexes and sequences. Those of a table that was set aside are in the way.
            Problem::NoTable(table) => {
                let names = "SELECT relname::text, overlay(relname::text PLACING $2 FROM 1 FOR length($3)) FROM pg_class
                             WHERE (relname::text = $1 OR starts_with(relname::text, $1 || '_')) AND pg_table_is_visible(oid)";
                let rows = self.transaction.query(names, &[&self.in_model(table), &tables, model]).await?;
                for (from, to) in rows.iter().map(|row| (row.get::<_, &str>(0), row.get::<_, &str>(1))) {
                    let rename = format!(
                        "ALTER TABLE IF EXISTS {to} RENAME TO {to}_lost; ALTER TABLE {from} RENAME TO {to}"
                    );
                    self.transaction.batch_execute(&rename).await?;
                }
                return Ok(Some(format!("created table {table}, empty")));
            }
            Problem::NoColumn { table, column } => {
                let add = "SELECT concat('ALTER TABLE ', $1::text, ' ADD COLUMN ', quote_ident(attname), ' ',
                                  format_type(atttypid, atttypmod), ' DEFAULT ' || pg_get_expr(adbin, adrelid),
                                  CASE attidentity WHEN 'a' THEN ' GENERATED ALWAYS AS IDENTITY' END,
                                  CASE WHEN attnotnull THEN ' NOT NULL' END)
                           FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
                           WHERE attrelid = to_regclass($2) AND attname = $3";
                self.transaction.query_one(add, &[table, &self.in_model(table), column]).await?.get(0)
            }
            Problem::Default { table, column, .. } => {
                // An identity begins after the greatest number in the table.
                let restore = "SELECT format(concat(
                                   'ALTER TABLE %1$s ALTER COLUMN %2$I DROP IDENTITY IF EXISTS; ',
                                   'ALTER TABLE %1$s ALTER COLUMN %2$I DROP DEFAULT; ALTER TABLE %1$s ALTER COLUMN %2$I ',
                                   'SET DEFAULT ' || pg_get_expr(adbin, adrelid),
                                   CASE attidentity WHEN 'a' THEN 'ADD GENERATED ALWAYS AS IDENTITY; SELECT setval(
                                       pg_get_serial_sequence(%1$L, %2$L), coalesce(max(%2$I), 0) + 1, false) FROM %1$s'
                                   END), $1::text, $3::text)
                               FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
                               WHERE attrelid = to_regclass($2) AND attname = $3";
                self.transaction.query_one(restore, &[table, &self.in_model(table), column]).await?.get(0)
            }
            Problem::Null { table, column, is_not_null } => {
                let change = if *is_not_null { "DROP" } else { "SET" };
                format!("ALTER TABLE {table} ALTER COLUMN {column} {change} NOT NULL")
            }
            Problem::NoKey { table, key } => format!("ALTER TABLE {table} ADD PRIMARY KEY ({key})"),
            Problem::NoIndex(index) => {
                let define = "SELECT replace(pg_get_indexdef(to_regclass($1)), $2 || '_', $3 || '_')";
                self.transaction.query_one(define, &[&self.in_model(index), model, &tables]).await?.get(0)
            }
            Problem::NoFunction(function) | Problem::Changed { function, .. } => {
                let define = "SELECT replace(pg_get_functiondef(oid), $2 || '_', $3 || '_') FROM pg_proc
                              WHERE proname = $1::text::name AND pg_function_is_visible(oid)";
                let define =
                    self.transaction.query_one(define, &[&self.in_model(function), model, &tables]).await?;
                let mut sql: String = define.get(0);
                if *function == partitions::function(self.tables) {
                    sql.push_str(&format!("; REVOKE ALL ON FUNCTION {function} FROM PUBLIC"));
                }
                sql
            }
            Problem::Other(_) => return Ok(None),
        };
        // A column that is created may bring its indexes back in a later step only.
        self.transaction.batch_execute(&sql).await.map_err(|error| refused_rows(problem, error.into()))?;
        Ok(Some(match problem {
            Problem::NoColumn { table, column } => format!("created column {column} of table {table}"),
            Problem::Default { table, column, wanted, .. } => {
                let wanted = wanted.trim_start_matches("an ").trim_start_matches("the ");
                format!("restored the {wanted} of column {column} of table {table}")
            }
            Problem::Null { table, column, .. } => {
                format!("restored whether column {column} of table {table} may be null")
            }
            Problem::NoKey { table, .. } => format!("created the key of table {table}"),
            Problem::NoIndex(index) => format!("created index {index}"),
            Problem::NoFunction(function) => format!("created function {function}"),
            Problem::Changed { function, .. } => format!("restored function {function}"),
            Problem::NoTable(_) | Problem::Other(_) => return Ok(None),
        }))
    }

    async fn drop_model(&self) -> QueryResult<()> {
        let drop = format!(
            "DO $drop$
             DECLARE statement text;
             BEGIN
                 FOR statement IN
                     SELECT format('DROP FUNCTION %s', oid::regprocedure) FROM pg_proc
                     WHERE starts_with(proname::text, '{model}_') AND pg_function_is_visible(oid)
                     UNION ALL
                     SELECT format('DROP TABLE IF EXISTS %s', oid::regclass) FROM pg_class
                     WHERE starts_with(relname::text, '{model}_') AND relkind IN ('r', 'p') AND NOT relispartition
                     AND pg_table_is_visible(oid)
                 LOOP EXECUTE statement; END LOOP;
             END $drop$",
            model = self.model
        );
        self.transaction.batch_execute(&drop).await
    }

    /// Adds the series of stored readings, as the script that created the table.
    async fn fill_series(&self) -> QueryResult<()> {
        let script = migrations::scripts(3, &self.tables.to_string()).last().unwrap_or_default();
        let (_, fill) = script.split_once("readings that are stored").unwrap_or_default();
        self.transaction.batch_execute(&format!("--{fill}")).await
    }

    /// Marks everything that can be computed from readings and hourly rollups. Rollups from before these are final: what
    /// they were computed from is not there.
    async fn compute_again(&self) -> QueryResult<()> {
        let tables = self.tables;
        let compute = format!(
            "UPDATE {tables}_series AS series SET
                 pruned_before = greatest(series.pruned_before, first.reading),
                 prunes = greatest(series.prunes, first.prunes) + 1,
                 -- Of today everything is there.
                 hours_pruned_before = greatest(series.hours_pruned_before,
                     least(date_bin('1 day', first.hour, '2000-01-01Z') + interval '24 hours',
                           date_bin('1 day', now(), '2000-01-01Z'))),
                 hour_prunes = greatest(series.hour_prunes, first.hour_prunes) + 1,
                 stale = {tables}_stale_with(series.stale, tstzmultirange(tstzrange(first.hour,
                     date_bin('1 hour', greatest(series.last_time, first.hour), '2000-01-01Z') + interval '1 hour')))
             FROM (
                 SELECT s.device, s.metric, coalesce(date_bin('1 hour', r.time, '2000-01-01Z'), now()) AS reading,
                        least(date_bin('1 hour', r.time, '2000-01-01Z'), h.time, date_bin('1 hour', now(), '2000-01-01Z'))
                            AS hour,
                        coalesce(h.prunes, 0) AS prunes, coalesce(d.prunes, 0) AS hour_prunes
                 FROM {tables}_series AS s
                 LEFT JOIN LATERAL (SELECT min(time) AS time FROM {tables}_readings AS r
                                    WHERE r.device = s.device AND r.metric = s.metric AND isfinite(time)) AS r ON true
                 LEFT JOIN LATERAL (SELECT min(time) AS time, max(after_prunes) AS prunes FROM {tables}_rollups_hour AS h
                                    WHERE h.device = s.device AND h.metric = s.metric) AS h ON true
                 LEFT JOIN LATERAL (SELECT max(after_prunes) AS prunes FROM {tables}_rollups_day AS d
                                    WHERE d.device = s.device AND d.metric = s.metric) AS d ON true) AS first
             WHERE first.device = series.device AND first.metric = series.metric AND isfinite(series.last_time)"
        );
        self.transaction.batch_execute(&compute).await
    }

    /// The name in the model.
    fn in_model(&self, name: &str) -> String {
        format!("{}{}", self.model, &name[self.tables.to_string().len()..])
    }
}

/// Says what to do if rows that were written meanwhile do not allow a repair.
fn refused_rows(problem: &Problem, error: DatabaseError) -> DatabaseError {
    let has = |code: &SqlState| error.code.as_ref() == Some(code);
    if !has(&SqlState::UNIQUE_VIOLATION) && !has(&SqlState::NOT_NULL_VIOLATION) {
        return error;
    }
    DatabaseError::schema(format!(
        "not repaired, because rows are in the way ({}): {problem}; remove or change these rows, and migrate again",
        error.detail
    ))
}
