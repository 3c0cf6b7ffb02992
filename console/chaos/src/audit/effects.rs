//! Counts how often each task took effect.

use std::{collections::HashMap, path::Path};

use super::{lines::Tail, store::Store};
use anyhow::Context;
use serde::Deserialize;

/// The variable that names the file for effects. It does not begin with `GARENNE_`: those are settings, and a worker
/// rejects unknown settings.
pub const EFFECTS_FILE: &str = "DRILL_EFFECTS";

/// Where effects were counted.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EffectSource {
    /// In the file that the workers wrote.
    File,
    /// By a query in Postgres.
    Postgres,
    /// Nowhere: an executed task counts as one effect.
    ExecutionLog,
}

#[derive(Deserialize)]
struct Line {
    task_id: String,
}

/// Counts effects by task id: in the file if the workers wrote one, else in Postgres if `postgres` is given. `sql` is a
/// query for task ids and counts; by default the fleet's results are counted.
///
/// # Errors
/// If the file cannot be read, or Postgres cannot be queried.
pub async fn count_effects(
    file: &Path,
    postgres: Option<&str>,
    sql: Option<&str>,
    prefix: &str,
) -> anyhow::Result<(EffectSource, Option<HashMap<String, u64>>)> {
    if file.exists() {
        let lines: Vec<Line> =
            Tail::new(file).read().with_context(|| format!("cannot read {}", file.display()))?;
        let mut effects: HashMap<String, u64> = HashMap::new();
        for Line { task_id } in lines {
            *effects.entry(task_id).or_default() += 1;
        }
        return Ok((EffectSource::File, Some(effects)));
    }
    let Some(url) = postgres else { return Ok((EffectSource::ExecutionLog, None)) };
    let connected = Store::connect(url, prefix).await;
    let store = connected.context("effects: cannot connect to Postgres (--postgres-url)")?;
    Ok((EffectSource::Postgres, Some(store.count_effects(sql).await?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn effects_in_a_file_are_counted_by_task() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("effects.ndjson");
        assert_eq!(count_effects(&file, None, None, "g").await.unwrap(), (EffectSource::ExecutionLog, None));
        std::fs::write(&file, "{\"task_id\":\"a\"}\n{\"task_id\":\"b\"}\nnot JSON\n{\"task_id\":\"a\"}\n")
            .unwrap();
        let (source, effects) = count_effects(&file, None, None, "g").await.unwrap();
        assert_eq!(source, EffectSource::File);
        assert_eq!(effects.unwrap(), [("a".to_owned(), 2), ("b".to_owned(), 1)].into());
    }
}
