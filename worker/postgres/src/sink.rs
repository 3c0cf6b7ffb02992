//! The sink: stores a batch of results and their readings in one transaction.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{BoxFuture, OptionFuture},
};
use garenne_common::{exit::Failure, resilience::deadline, supervise};
use garenne_database::{
    Connection, Database, DatabaseError, ErrorKind, PostgresPool, QueryResult, Tables,
    derived::DerivedValues, finish, partitions::Partitions, schema,
};

use crate::{
    alarm_evaluator::{AlarmEvaluator, Evaluation},
    alarm_monitor::AlarmMonitor,
    changed_reading::ChangedReading,
    lane_recorder::LaneRecorder,
    notice::Notice,
    readings::{OnConflict, ReadingStatements, StoredReadings},
    relay::Relay,
    results::{ResultStatement, StoredResults},
    rollup_worker::RollupWorker,
    series,
    silence::Silences,
    silence_monitor::SilenceMonitor,
};
use garenne::sink::{FinishedTask, Sink, SinkAnswer, SinkContext, SinkError};
use garenne_sensors::{alarm::Rules, alert, reading_row::ReadingRows};

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
    rules: Arc<Rules>,
    alarms: AlarmEvaluator,
    /// [`None`] if no rule is about silence.
    silences: Option<Arc<Silences>>,
    relay: Relay,
    /// [`None`] if the lanes are not recorded.
    recorder: Option<LaneRecorder>,
}

/// Time limit for a batch, which usually takes milliseconds. Only this timeout detects a server that hangs with
/// its connections open.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

impl PostgresSink {
    /// The name in the setting `sinks`, in logs and in metrics.
    pub const NAME: &'static str = "postgres";

    /// Connects, and makes sure that the tables of the fleet with this prefix have the version that this program needs
    /// ([`schema::prepare`]).
    ///
    /// # Errors
    /// The server did not answer within `timeout` or refused the connection, or the tables have another version.
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
            relay: Relay::new(pool.clone(), &tables, notice_wait),
            recorder: LaneRecorder::new(pool.clone(), &tables, lane_history),
            silences: Silences::new(&tables, Arc::clone(&rules)).map(Arc::new),
            pool,
            partitions: Partitions::new(&tables),
            readings: ReadingStatements::new(&tables, on_conflict),
            results: ResultStatement::new(&tables, results),
            update_series: series::update_statement(&tables),
            derived: DerivedValues::new(&tables),
            alarms: AlarmEvaluator::new(Arc::clone(&rules), &tables),
            rules,
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
                Ok(accepted) => Ok(accepted),
                Err(error) if error.kind != ErrorKind::Row => {
                    Err(SinkError { sink: Self::NAME, detail: error.detail })
                }
                Err(error) if batch.len() == 1 => Ok(vec![SinkAnswer::Refused(error.detail)]),
                Err(_) => {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    let mut accepted = self.store_bisecting(first).await?;
                    accepted.extend(self.store_bisecting(second).await?);
                    Ok(accepted)
                }
            }
        })
    }

    async fn store(&self, batch: &[FinishedTask]) -> Result<Vec<SinkAnswer>, DatabaseError> {
        let times = batch.iter().flat_map(|finished| finished.output.rows()).map(|row| row.time);
        self.partitions.ensure(&self.pool, times).await;
        let mut client = self.pool.client().await?;
        let stored = deadline(WRITE_TIMEOUT, self.store_with(&mut client, batch)).await;
        finish(client, stored)
    }

    /// Stores a batch. Returns the answers.
    async fn store_with(
        &self,
        client: &mut Connection,
        batch: &[FinishedTask],
    ) -> QueryResult<Vec<SinkAnswer>> {
        let transaction = client.transaction().await?;
        let mut accepted = vec![SinkAnswer::Stored; batch.len()];
        self.alarms.lock(&transaction, batch).await?;
        let StoredReadings { changed, conflicts, restored, places, declaring } =
            self.readings.store(&transaction, batch).await?;
        for (index, detail) in conflicts {
            accepted[index] = SinkAnswer::Conflict(detail);
        }
        let stored = batch.iter().zip(&accepted).filter(|(_, accepted)| **accepted == SinkAnswer::Stored);
        let stored: Vec<_> = stored.map(|(finished, _)| finished).collect();
        self.results.store(&transaction, &stored).await?;
        let task_id = |reading: &ChangedReading<'_>| batch[reading.result].envelope.id.as_str();
        // Also those of tasks that have another reading with a conflict: they are stored.
        let Evaluation { mut notices, pending } =
            self.alarms.evaluate(&transaction, &changed, task_id).await?;
        let has_replaced = !(restored.is_empty() && places.is_empty());
        if has_replaced {
            let measured = changed.iter().map(|it| (&*it.row.device, &*it.row.metric));
            let restored = restored.iter().map(|key| (&*key.device, &*key.metric));
            self.derived.lock(&transaction, measured.chain(restored), &places).await?;
        }
        series::update(&transaction, &self.update_series, &changed, &declaring, &pending).await?;
        if has_replaced {
            let derived = self.derived.derive(&transaction, &places, &[]).await?;
            self.derived.write(&transaction, &restored, &derived).await?;
        }
        if let Some(silences) = &self.silences {
            notices.extend(silences.clear(&transaction, &changed, task_id).await?);
        }
        continue_traces(&mut notices, batch);
        let notified: Vec<_> = stored.iter().filter_map(|finished| notice(finished)).collect();
        let notified: Vec<_> = notified.iter().map(|id| &**id).collect();
        self.relay.commit(transaction, notices, &notified).await?;
        Ok(accepted)
    }
}

/// The notice whose task is done, here or in a worker without this sink.
fn notice(finished: &FinishedTask) -> Option<Cow<'_, str>> {
    match finished.envelope.kind.as_str() {
        alert::KIND => Some(finished.envelope.id.as_str().into()),
        alert::NOTIFIED_KIND => {
            let notified: alert::Notified = serde_json::from_str(finished.output.json.get()).ok()?;
            Some(notified.notice.into())
        }
        _ => None,
    }
}

/// Gives each notice the trace of the task that changed its alarm.
fn continue_traces(notices: &mut [Notice], batch: &[FinishedTask]) {
    if notices.is_empty() {
        return;
    }
    let traces: HashMap<_, _> =
        batch.iter().map(|finished| (finished.envelope.id.as_str(), finished.trace.as_ref())).collect();
    for notice in notices {
        let trace = notice.task_id.as_deref().and_then(|task| traces.get(task).copied().flatten());
        notice.trace = trace.map(|trace| trace.parent().to_owned());
    }
}

impl Sink for PostgresSink {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        self.store_bisecting(batch)
    }

    fn has_no_result(&self, kind: &str, task_id: &str, is_dead: bool) {
        if kind == alert::KIND {
            self.relay.has_no_result(task_id, is_dead);
        }
    }

    fn background<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, ()> {
        let relay = supervise::restarting("alert-relay", (&self.relay, context), |(relay, context)| {
            relay.run(context).boxed()
        });
        let monitor = self.silences.as_ref().map(|silences| {
            let monitor = SilenceMonitor::new(self.pool.clone(), &self.tables, Arc::clone(silences));
            let state = (monitor, &self.relay, context);
            supervise::restarting("silence-monitor", state, |(monitor, relay, context)| {
                monitor.run(context, relay).boxed()
            })
        });
        let rules = Arc::clone(&self.rules);
        let alarms = AlarmMonitor::new(self.pool.clone(), &self.tables, rules, &self.alarms, &self.relay);
        let alarms = supervise::restarting("alarm-monitor", (alarms, context), |(alarms, context)| {
            alarms.run(context).boxed()
        });
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
            let monitor = OptionFuture::from(monitor.map(IntoFuture::into_future));
            let recorder = OptionFuture::from(recorder.map(IntoFuture::into_future));
            let (relay, alarms, rollups) = (relay.into_future(), alarms.into_future(), rollups.into_future());
            let _ = tokio::join!(relay, alarms, monitor, rollups, recorder);
        }
        .boxed()
    }
}
