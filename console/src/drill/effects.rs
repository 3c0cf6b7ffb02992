//! How often each task took effect, where effects can be seen.

use std::{collections::HashMap, path::Path};

use anyhow::Context;
use serde::Deserialize;
use tokio_postgres::NoTls;

use crate::audit::{Tail, table};

/// The variable that names the file for effects. Not one of `GARENNE_…`: those are settings, and a
/// worker refuses those it does not know.
pub(super) const EFFECTS_FILE: &str = "DRILL_EFFECTS";

/// What effects are counted in.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Witness {
    /// The file that the workers wrote.
    File,
    /// A query in Postgres.
    Postgres,
    /// Nothing: an executed task counts as one effect.
    ExecutionLog,
}

#[derive(Deserialize)]
struct Line {
    task_id: String,
}

/// Counts effects by task id: in the file, where the workers wrote one, else in Postgres, where that
/// was given.
pub(super) async fn count(
    file: &Path,
    postgres: Option<&str>,
    sql: Option<&str>,
    prefix: &str,
) -> anyhow::Result<(Witness, Option<HashMap<String, u64>>)> {
    let mut effects: HashMap<String, u64> = HashMap::new();
    if file.exists() {
        let lines = Tail::new(file).lines().with_context(|| format!("{} cannot be read", file.display()))?;
        for line in lines.iter().filter_map(|line| serde_json::from_slice::<Line>(line).ok()) {
            *effects.entry(line.task_id).or_default() += 1;
        }
        return Ok((Witness::File, Some(effects)));
    }
    let Some(url) = postgres else { return Ok((Witness::ExecutionLog, None)) };
    let sql = sql.map_or_else(
        || format!("SELECT task_id, count(*) FROM {} GROUP BY task_id", table(prefix, "results")),
        str::to_owned,
    );
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.context("effects: no Postgres (--postgres-url)")?;
    // The query below says what goes wrong with the connection.
    let driver = tokio::spawn(async move { drop(connection.await) });
    let rows = client.query(&sql, &[]).await.with_context(|| format!("effects: {sql}"))?;
    for row in rows {
        let (id, times): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
        effects.insert(id, times.unsigned_abs());
    }
    driver.abort();
    Ok((Witness::Postgres, Some(effects)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn effects_in_a_file_are_counted_by_task() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("effects.ndjson");
        assert_eq!(count(&file, None, None, "g").await.unwrap(), (Witness::ExecutionLog, None));
        std::fs::write(&file, "{\"task_id\":\"a\"}\n{\"task_id\":\"b\"}\nscrap\n{\"task_id\":\"a\"}\n")
            .unwrap();
        let (witness, effects) = count(&file, None, None, "g").await.unwrap();
        assert_eq!(witness, Witness::File);
        assert_eq!(effects.unwrap(), [("a".to_owned(), 2), ("b".to_owned(), 1)].into());
    }
}
