//! Counts how often each task took effect.

use std::{collections::HashMap, path::PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{Expected, Store, Tail};

/// The variable that names the file for effects. It does not begin with `GARENNE_`: those are settings, and a worker
/// rejects unknown settings.
pub(crate) const EFFECTS_FILE: &str = "DRILL_EFFECTS";

/// Where effects were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EffectSource {
    /// In the file that the workers wrote.
    File,
    /// By a query in Postgres.
    Postgres,
    /// Nowhere: only executions are known.
    #[default]
    ExecutionLog,
}

/// Where effects may be found.
pub(crate) struct Effects {
    /// It exists if the workers write it.
    pub(crate) file: PathBuf,
    pub(crate) store: Option<Store>,
    /// A query for task ids and counts.
    pub(crate) sql: Option<String>,
}

#[derive(Deserialize)]
struct Line {
    task_id: String,
}

impl Effects {
    /// Counts effects by task id: in the file if the workers wrote one, else in Postgres.
    pub(crate) async fn count(
        &self,
        expected: &[Expected],
    ) -> anyhow::Result<(EffectSource, Option<HashMap<String, u64>>)> {
        if self.file.exists() {
            let lines: Vec<Line> = Tail::new(&self.file)
                .read()
                .with_context(|| format!("cannot read {}", self.file.display()))?;
            let mut effects = HashMap::new();
            for Line { task_id } in lines {
                *effects.entry(task_id).or_default() += 1;
            }
            return Ok((EffectSource::File, Some(effects)));
        }
        let Some(store) = &self.store else { return Ok((EffectSource::ExecutionLog, None)) };
        let has_readings = expected.first().is_some_and(|task| task.reading.is_some());
        let effects = match has_readings {
            true => store.stored_readings(expected).await?,
            false => store.counts(self.sql.as_deref()).await?,
        };
        Ok((EffectSource::Postgres, Some(effects)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn effects_in_a_file_are_counted_by_task() {
        let dir = tempfile::tempdir().unwrap();
        let effects = Effects { file: dir.path().join("effects.ndjson"), store: None, sql: None };
        assert_eq!(effects.count(&[]).await.unwrap(), (EffectSource::ExecutionLog, None));
        std::fs::write(
            &effects.file,
            "{\"task_id\":\"a\"}\n{\"task_id\":\"b\"}\nnot JSON\n{\"task_id\":\"a\"}\n",
        )
        .unwrap();
        let (source, counts) = effects.count(&[]).await.unwrap();
        assert_eq!(source, EffectSource::File);
        assert_eq!(counts.unwrap(), [("a".to_owned(), 2), ("b".to_owned(), 1)].into());
    }
}
