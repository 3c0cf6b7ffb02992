//! The sink: stores a batch of results and their readings in one transaction.

use std::{sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{BoxFuture, OptionFuture},
};
use garenne_common::{exit::Failure, supervise};
use garenne_database::{
    Connection, Database, DatabaseError, ErrorKind, PostgresPool, QueryResult, Tables,
    derived::DerivedValues, partitions::Partitions, schema,
};

use crate::{
    lane_recorder::LaneRecorder,
    readings::{OnConflict, ReadingStatements, StoredReadings},
    results::{ResultStatement, StoredResults},
    rollup_worker::RollupWorker,
    series,
};
use garenne::sink::{FinishedTask, Sink, SinkAnswer, SinkContext, SinkError};
use garenne_alarms::{Alarms, alarm::Rules};
use garenne_sensors::reading_row::ReadingRows;

/// How a sink stores.
#[derive(Clone, Debug)]
pub struct SinkOptions {
    /// How a reading is treated that is stored with another value.
    pub on_conflict: OnConflict,
    /// Which results get a row.
    pub results: StoredResults,
    /// Whether older tables are changed to the version that this program needs.
    pub migrate: bool,
    /// The alarm rules for stored readings.
    pub rules: Arc<Rules>,
    /// How long the next notice of an alarm waits for one that nobody has heard of since it was published.
    pub notice_wait: Duration,
    /// The step of the history of lanes, in whole seconds; 0 for none.
    pub lane_history: Duration,
}

/// Writes results and readings to Postgres.
pub struct PostgresSink {
    pool: PostgresPool,
    tables: Tables,
    partitions: Partitions,
    readings: ReadingStatements,
    results: ResultStatement,
    update_series: String,
    derived: DerivedValues,
    alarms: Alarms,
    /// [`None`] if the lanes are not recorded.
    recorder: Option<LaneRecorder>,
}

/// Time limit for a batch, which usually takes milliseconds. Only this timeout detects a server that hangs with
/// its connections open.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

impl PostgresSink {
    /// The name in the setting `sinks`, in logs and in metrics.
    pub const NAME: &'static str = "postgres";

    /// Connects within `timeout`, and makes sure that the tables of the fleet with this prefix have the version that
    /// this program needs ([`schema::prepare`]).
    pub async fn connect(
        database: Database,
        prefix: &str,
        options: SinkOptions,
        timeout: Duration,
    ) -> Result<Arc<Self>, Failure> {
        let SinkOptions { on_conflict, results, migrate, rules, notice_wait, lane_history } = options;
        let pool = PostgresPool::new(database);
        let tables = Tables::new(prefix);
        schema::prepare(&pool, &tables, migrate, timeout).await?;
        Ok(Arc::new(Self {
            recorder: LaneRecorder::new(pool.clone(), &tables, lane_history),
            alarms: Alarms::new(pool.clone(), &tables, rules, notice_wait),
            pool,
            partitions: Partitions::new(&tables),
            readings: ReadingStatements::new(&tables, on_conflict),
            results: ResultStatement::new(&tables, results),
            update_series: series::update_statement(&tables),
            derived: DerivedValues::new(&tables),
            tables,
        }))
    }

    /// Stores a batch. A row that Postgres refuses fails the whole transaction, so the batch is halved until that
    /// result is alone. It is refused, and the others are stored.
    fn store_bisecting<'a>(
        &'a self,
        batch: &'a [FinishedTask],
    ) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        Box::pin(async move {
            match self.store(batch).await {
                Ok(answers) => Ok(answers),
                Err(error) if error.kind != ErrorKind::Row => {
                    Err(SinkError { sink: Self::NAME, detail: error.detail })
                }
                Err(error) if batch.len() == 1 => {
                    let name = Self::NAME;
                    Ok(vec![SinkAnswer::Refused(format!(
                        "the sink {name} refused the result: {}",
                        error.detail
                    ))])
                }
                Err(_) => {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    let mut answers = self.store_bisecting(first).await?;
                    answers.extend(self.store_bisecting(second).await?);
                    Ok(answers)
                }
            }
        })
    }

    async fn store(&self, batch: &[FinishedTask]) -> Result<Vec<SinkAnswer>, DatabaseError> {
        let times = batch.iter().flat_map(|finished| finished.output.rows()).map(|row| row.time);
        self.partitions.ensure(&self.pool, times).await;
        self.pool.within(WRITE_TIMEOUT, async |client| self.store_with(client, batch).await).await
    }

    /// Stores a batch. Returns the answers.
    async fn store_with(
        &self,
        client: &mut Connection,
        batch: &[FinishedTask],
    ) -> QueryResult<Vec<SinkAnswer>> {
        let transaction = client.transaction().await?;
        let mut answers = vec![SinkAnswer::Stored; batch.len()];
        self.alarms.lock(&transaction, batch).await?;
        let StoredReadings { changed, conflicts, restored, places, declaring } =
            self.readings.store(&transaction, batch).await?;
        for (index, detail) in conflicts {
            answers[index] = SinkAnswer::Conflict(detail);
        }
        let stored = batch.iter().zip(&answers).filter(|(_, answer)| **answer == SinkAnswer::Stored);
        let stored: Vec<_> = stored.map(|(finished, _)| finished).collect();
        self.results.store(&transaction, &stored).await?;
        // Also those of tasks that have another reading with a conflict: they are stored.
        let judged = self.alarms.judge(&transaction, batch, &changed).await?;
        let has_replaced = !(restored.is_empty() && places.is_empty());
        if has_replaced {
            let measured = changed.iter().map(|it| (&*it.row.device, &*it.row.metric));
            let restored = restored.iter().map(|key| (&*key.device, &*key.metric));
            self.derived.lock(&transaction, measured.chain(restored), &places).await?;
        }
        series::update(&transaction, &self.update_series, &changed, &declaring, &judged.pending).await?;
        if has_replaced {
            let derived = self.derived.derive(&transaction, &places, &[]).await?;
            self.derived.write(&transaction, &restored, &derived).await?;
        }
        self.alarms.commit(transaction, judged, batch, &changed, &stored).await?;
        Ok(answers)
    }
}

impl Sink for PostgresSink {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        self.store_bisecting(batch)
    }

    fn ended_without_result(&self, kind: &str, task_id: &str, is_dead: bool) {
        self.alarms.ended_without_result(kind, task_id, is_dead);
    }

    fn span_attributes(&self) -> &'static [(&'static str, &'static str)] {
        &[("db.system.name", "postgresql"), ("db.operation.name", "INSERT")]
    }

    fn background<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, ()> {
        let rollups = RollupWorker::new(self.pool.clone(), &self.tables);
        let rollups = supervise::restarting("rollups", (rollups, context), |(rollups, context)| {
            rollups.run(context).boxed()
        });
        let recorder = self.recorder.as_ref().map(|recorder| {
            supervise::restarting("lane-recorder", (recorder, context), |(recorder, context)| {
                recorder.run(context).boxed()
            })
        });
        async move {
            let recorder = OptionFuture::from(recorder.map(IntoFuture::into_future));
            let _ = tokio::join!(self.alarms.run(context), rollups.into_future(), recorder);
        }
        .boxed()
    }
}
