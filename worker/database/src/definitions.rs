//! What the scripts define of indexes, functions, and defaults of columns.
//!
//! The scripts are read as text, so that a user without the right to create anything can compare a database with them. What
//! is compared is what Postgres keeps as it was written, such as the body of a function: every version of it shows the same.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::{Client, Row};

use crate::{error::QueryResult, migrations, tables::Tables};

/// What the scripts up to a version define. The names include the prefix.
#[derive(Default)]
pub(crate) struct Definitions {
    pub(crate) indexes: BTreeSet<String>,
    pub(crate) functions: BTreeMap<String, Function>,
    /// [`IDENTITY`] or `the default …`, by table and column.
    pub(crate) defaults: BTreeMap<(String, String), String>,
    /// Columns that are not null, by table, without those of composite keys.
    pub(crate) not_null: BTreeSet<(String, String)>,
}

const IDENTITY: &str = "an identity";
pub(crate) const NO_DEFAULT: &str = "no default";

/// A function as a script defines it.
pub(crate) struct Function {
    /// The name with the types of the parameters.
    signature: String,
    /// From the return type to the last setting.
    header: String,
    body: String,
}

impl Definitions {
    pub(crate) fn of_version(version: i32, tables: &Tables) -> Self {
        let mut definitions = Self::default();
        for script in migrations::scripts(version, &tables.to_string()) {
            definitions.add_functions(&script);
            let lines = script.lines().filter(|line| !line.trim_start().starts_with("--"));
            for statement in lines.collect::<Vec<_>>().join("\n").split(';') {
                definitions.add_statement(statement.trim());
            }
        }
        definitions
    }

    /// A later script may replace a function.
    fn add_functions(&mut self, script: &str) {
        let mut rest = script;
        while let Some((before, after)) = rest.split_once(" FUNCTION ") {
            rest = after;
            let is_created = before.ends_with("CREATE") || before.ends_with("CREATE OR REPLACE");
            let parts = after.split_once(" AS $body$").and_then(|(head, rest)| {
                let ((name, head), (body, rest)) = (head.split_once('(')?, rest.split_once("$body$")?);
                let (parameters, header) = head.split_once(')')?;
                Some((name, parameters, header, body, rest))
            });
            let Some((name, parameters, header, body, next)) = parts.filter(|_| is_created) else { continue };
            let types =
                parameters.split(',').map(str::trim).filter(|parameter| !parameter.starts_with("OUT "));
            let types: Vec<_> =
                types.filter_map(|parameter| parameter.split_once(' ')).map(|(_, kind)| kind).collect();
            // The text of a format has its schema in the settings.
            let is_format = header.contains("%1$I");
            let function = Function {
                signature: format!("{name}({})", types.join(", ")),
                header: header.to_owned(),
                body: if is_format { body.replace("%%", "%") } else { body.to_owned() },
            };
            self.functions.insert(name.to_owned(), function);
            rest = next;
        }
    }

    fn add_statement(&mut self, statement: &str) {
        let name_of = |rest: &str| rest.split([' ', '\n', '(']).next().unwrap_or_default().to_owned();
        let if_exists =
            |rest: &str| name_of(rest.trim_start_matches("IF NOT EXISTS ").trim_start_matches("IF EXISTS "));
        if let Some(rest) = statement.strip_prefix("CREATE INDEX ") {
            self.indexes.insert(if_exists(rest));
        } else if let Some(rest) = statement.strip_prefix("DROP INDEX ") {
            self.indexes.remove(&if_exists(rest));
        } else if let Some(rest) = statement.strip_prefix("CREATE TABLE ") {
            let columns = rest.split_once('(').and_then(|(_, columns)| columns.strip_suffix(')'));
            self.add_columns(&if_exists(rest), columns.unwrap_or_default());
        } else if let Some(rest) = statement.strip_prefix("ALTER TABLE ") {
            self.add_columns(&name_of(rest), rest.trim_start_matches(|c: char| !c.is_whitespace()));
        }
    }

    fn add_columns(&mut self, table: &str, columns: &str) {
        let definitions = columns.split(',').map(|definition| {
            definition.trim().trim_start_matches("ADD COLUMN ").trim_start_matches("ALTER COLUMN ")
        });
        for definition in definitions {
            let Some((column, definition)) = definition.split_once(' ') else { continue };
            let key = (table.to_owned(), column.to_owned());
            if definition.ends_with("DROP NOT NULL") {
                self.not_null.remove(&key);
            } else if definition.contains(" NOT NULL") || definition.contains(" PRIMARY KEY") {
                self.not_null.insert(key);
            }
            let default =
                definition.split_once(" DEFAULT ").map(|(_, default)| format!("the default {default}"));
            let identity =
                || definition.contains(" GENERATED ALWAYS AS IDENTITY").then(|| IDENTITY.to_owned());
            if let Some(default) = default.or_else(identity) {
                self.defaults.insert((table.to_owned(), column.to_owned()), default);
            }
        }
    }
}

/// What a column has in rows that give no value, as [`Definitions::defaults`] has it. `expression` is that of Postgres, with
/// the type of a constant.
pub(crate) fn found_default(identity: &str, expression: Option<&str>) -> String {
    match (identity, expression) {
        ("a", _) => IDENTITY.to_owned(),
        ("", None) => NO_DEFAULT.to_owned(),
        ("", Some(expression)) => {
            format!("the default {}", expression.split("::").next().unwrap_or_default())
        }
        _ => "another identity".to_owned(),
    }
}

/// Names of functions that are missing, and of those that differ with what differs.
pub(crate) async fn differing_functions(
    client: &Client,
    definitions: &Definitions,
) -> QueryResult<Vec<(String, Option<String>)>> {
    let signatures: Vec<_> = definitions.functions.values().map(|function| &function.signature).collect();
    // With the function's schema in the place that the scripts have for it. Before Postgres 16, `to_regprocedure` fails at a
    // type that does not exist.
    let found = r"
        SELECT p.oid IS NOT NULL, prosrc, lanname::text, provolatile::text, proparallel::text, prosecdef, proisstrict,
               coalesce(proconfig, '{}'), quote_ident(nspname), has_function_privilege('public', p.oid, 'EXECUTE')
        FROM unnest($1::text[]) WITH ORDINALITY AS wanted(signature, number)
        LEFT JOIN pg_proc AS p ON p.oid = CASE WHEN (
            SELECT bool_and(to_regtype(kind) IS NOT NULL)
            FROM unnest(string_to_array(substring(signature FROM '\((.*)\)$'), ', ')) AS kind
        ) IS NOT FALSE THEN to_regprocedure(signature) END
        LEFT JOIN pg_namespace AS n ON n.oid = pronamespace LEFT JOIN pg_language AS l ON l.oid = prolang
        ORDER BY number";
    let rows = client.query(found, &[&signatures]).await?;
    let differing = definitions.functions.iter().zip(&rows).filter_map(|((name, function), row)| {
        if !row.get::<_, bool>(0) {
            return Some((name.clone(), None));
        }
        let differences = function.differences(row);
        (!differences.is_empty()).then(|| (name.clone(), Some(differences.join(", "))))
    });
    Ok(differing.collect())
}

impl Function {
    /// What of the function in the database is not as the script has it.
    fn differences(&self, found: &Row) -> Vec<&'static str> {
        let Self { header, body, .. } = self;
        let has = |words: &str| header.split("SET ").next().is_some_and(|header| header.contains(words));
        let mut settings: Vec<_> = header
            .split("SET ")
            .skip(1)
            .map(|setting| setting.trim().replace(" = ", "=").replace('\'', "").replace("%1$I", found.get(8)))
            .collect();
        let mut found_settings: Vec<String> = found.get(7);
        settings.sort_unstable();
        found_settings.sort_unstable();
        let volatility = if has("IMMUTABLE") {
            "i"
        } else if has("STABLE") {
            "s"
        } else {
            "v"
        };
        let parallel = if has("PARALLEL SAFE") { "s" } else { "u" };
        let is_definer = has("SECURITY DEFINER");
        [
            ("body", found.get::<_, &str>(1) != body),
            ("language", !has(&format!("LANGUAGE {}", found.get::<_, &str>(2)))),
            ("volatility", found.get::<_, &str>(3) != volatility),
            ("parallel", found.get::<_, &str>(4) != parallel),
            ("security", found.get::<_, bool>(5) != is_definer),
            ("strict", found.get::<_, bool>(6)),
            ("settings", found_settings != settings),
            // Everybody would have the rights of its owner.
            ("rights", is_definer && found.get(9)),
        ]
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<T>(found: impl IntoIterator<Item = T>, name: impl Fn(T) -> String) -> String {
        found.into_iter().map(name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_scripts_define_what_they_create() {
        let definitions = Definitions::of_version(migrations::VERSION, &Tables::new("p"));
        let indexes = "p_alarms_by_rule p_alarms_current p_alarms_open p_alarms_withheld p_corrections_by_reading \
                       p_corrections_deleted p_maintenance_by_end p_notices_by_alarm p_notices_unpublished \
                       p_results_by_start p_series_failing";
        assert_eq!(names(&definitions.indexes, Clone::clone), indexes);
        let functions = "p_all_hours p_counter_step p_counter_steps p_daily p_ensure_partition p_hourly p_hours_after \
                         p_hours_of_readings p_is_counted p_is_final_day p_is_final_hour p_is_usable p_mean p_roll_up \
                         p_stale_with";
        assert_eq!(names(definitions.functions.keys(), Clone::clone), functions);
        let signature = |name: &str| definitions.functions[name].signature.as_str();
        assert_eq!(signature("p_roll_up"), "p_roll_up(text, text, int)");
        assert_eq!(signature("p_is_final_day"), "p_is_final_day(p_series, timestamptz)");
        assert!(definitions.functions["p_ensure_partition"].body.contains("'CREATE TABLE %I (LIKE"));
        assert!(definitions.functions["p_counter_steps"].body.contains("p_is_counted("));
        let defaults = names(&definitions.defaults, |((table, column), default)| {
            format!("{table}.{column} {default}\n")
        });
        assert_eq!(
            defaults.replace("\n ", "\n").trim_end(),
            "p_alarms.clear_withheld the default false\n\
             p_alarms.is_missing the default false\n\
             p_alarms.notices the default 0\n\
             p_alarms.notified_at the default now()\n\
             p_alarms.severity the default 'warning'\n\
             p_corrections.corrected_at the default now()\n\
             p_corrections.id an identity\n\
             p_maintenance.created_at the default now()\n\
             p_notice_attempts.at the default now()\n\
             p_notices.at the default now()\n\
             p_readings.stored_at the default now()\n\
             p_rejudge.at the default now()\n\
             p_rejudge.id an identity\n\
             p_rules.announced_at the default now()\n\
             p_rules.first_seen the default now()\n\
             p_series.hour_prunes the default 0\n\
             p_series.hours_pruned_before the default '-infinity'\n\
             p_series.pruned_before the default '-infinity'\n\
             p_series.prunes the default 0\n\
             p_series.rollup_failures the default 0\n\
             p_series.stale the default '{}'"
        );
    }

    #[test]
    fn an_earlier_version_has_its_own_definitions() {
        let definitions = Definitions::of_version(9, &Tables::new("p"));
        assert!(
            definitions.functions["p_counter_step"].signature.ends_with("timestamptz, double precision)")
        );
        assert!(!definitions.functions.contains_key("p_is_counted"));
        assert!(Definitions::of_version(1, &Tables::new("p")).indexes.contains("p_alarms_by_device"));
    }
}
