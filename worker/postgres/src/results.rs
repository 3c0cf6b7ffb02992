//! Stores the results of a batch, a row for each task.

use deadpool_postgres::Transaction;
use garenne::{handler::Payload, sink::FinishedTask};
use garenne_database::{Parameters, QueryResult, Tables, column};
use garenne_sensors::reading::Readings;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use tokio_postgres::types::Json;

/// Which results get a row. A repeated task has no second effect with any of them: its readings tell it from a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoredResults {
    /// Every task's, as it is. The output of `reading.process` repeats its readings.
    All,
    /// Every task's, but the output of `reading.process` is `{}`: its readings have rows of their own.
    #[default]
    WithoutReadings,
    /// None.
    Off,
}

pub(super) struct ResultStatement {
    stored: StoredResults,
    insert: String,
    empty: Box<RawValue>,
}

impl ResultStatement {
    pub(super) fn new(tables: &Tables, stored: StoredResults) -> Self {
        let insert = format!(
            "INSERT INTO {tables}_results (task_id, kind, attempt, worker, started_at, duration_ms, output)
             SELECT * FROM unnest($1::text[], $2::text[], $3::int4[], $4::text[], $5::timestamptz[],
                                  $6::float8[], $7::jsonb[])
             ORDER BY 1 ON CONFLICT DO NOTHING"
        );
        Self {
            stored,
            insert,
            empty: RawValue::from_string("{}".to_owned()).expect("an empty object is JSON"),
        }
    }

    pub(super) async fn store(
        &self,
        transaction: &Transaction<'_>,
        batch: &[&FinishedTask],
    ) -> QueryResult<()> {
        if self.stored == StoredResults::Off {
            return Ok(());
        }
        let statement = transaction.prepare_cached(&self.insert).await?;
        let parameters: Parameters<'_, 7> = [
            &column(batch, |f| f.envelope.id.as_str()),
            &column(batch, |f| f.envelope.kind.as_str()),
            &column(batch, |f| i32::try_from(f.attempt()).unwrap_or(i32::MAX)),
            &column(batch, |f| &*f.worker),
            &column(batch, |f| OffsetDateTime::from(f.started_at)),
            &column(batch, |f| f.duration_ms()),
            &column(batch, |f| Json(self.output(f))),
        ];
        transaction.execute(&statement, &parameters).await.map(drop)
    }

    /// The stored part of a task's output.
    fn output<'a>(&'a self, finished: &'a FinishedTask) -> &'a RawValue {
        let repeats_readings = finished.envelope.kind.as_str() == Readings::KIND;
        match self.stored {
            StoredResults::WithoutReadings if repeats_readings => &self.empty,
            _ => &finished.output.json,
        }
    }
}
