//! The alarms of a fleet, as a sink that stores readings uses them.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use deadpool_postgres::Transaction;
use futures_util::{FutureExt, future::OptionFuture};
use garenne::sink::{FinishedTask, SinkContext};
use garenne_common::supervise;
use garenne_database::{PostgresPool, QueryResult, Tables};
use garenne_sensors::alert;

use crate::{
    alarm::Rules,
    alarm_evaluator::{AlarmEvaluator, Judged},
    alarm_monitor::AlarmMonitor,
    changed_reading::ChangedReading,
    notice::Notice,
    relay::Relay,
    silence::Silences,
    silence_monitor::SilenceMonitor,
};

/// Judges the readings of a batch in the transaction that stores them, and publishes the notices of alarms.
///
/// A transaction [locks](Self::lock) the series of its batch, stores the readings, [judges](Self::judge) what it has changed,
/// and [commits](Self::commit).
pub struct Alarms {
    pool: PostgresPool,
    tables: Tables,
    rules: Arc<Rules>,
    evaluator: AlarmEvaluator,
    /// [`None`] if no rule is about silence.
    silences: Option<Arc<Silences>>,
    relay: Relay,
}

impl Alarms {
    /// The alarms of these rules. `notice_wait` is how long the next notice of an alarm waits for one that nobody has heard of
    /// since it was published.
    pub fn new(pool: PostgresPool, tables: &Tables, rules: Arc<Rules>, notice_wait: Duration) -> Self {
        Self {
            relay: Relay::new(pool.clone(), tables, notice_wait),
            silences: Silences::new(tables, Arc::clone(&rules)).map(Arc::new),
            evaluator: AlarmEvaluator::new(Arc::clone(&rules), tables),
            pool,
            tables: tables.clone(),
            rules,
        }
    }

    /// Locks the series of a batch that are judged, until the transaction ends. Must precede every write of the transaction.
    pub async fn lock(&self, transaction: &Transaction<'_>, batch: &[FinishedTask]) -> QueryResult<()> {
        self.evaluator.lock(transaction, batch).await
    }

    /// Judges the changed readings of a batch and updates the alarms.
    pub async fn judge<'a>(
        &'a self,
        transaction: &Transaction<'_>,
        batch: &'a [FinishedTask],
        changed: &[ChangedReading<'a>],
    ) -> QueryResult<Judged<'a>> {
        self.evaluator.evaluate(transaction, changed, |reading| task_id(batch, reading)).await
    }

    /// Ends silences and stores the notices, and commits the transaction. Must follow the update of the series. `stored` are
    /// the tasks of the batch that have results now: some may be those of notices.
    pub async fn commit<'a>(
        &self,
        transaction: Transaction<'_>,
        Judged { mut notices, .. }: Judged<'a>,
        batch: &'a [FinishedTask],
        changed: &[ChangedReading<'a>],
        stored: &[&FinishedTask],
    ) -> QueryResult<()> {
        if let Some(silences) = &self.silences {
            notices.extend(silences.clear(&transaction, changed, |reading| task_id(batch, reading)).await?);
        }
        continue_traces(&mut notices, batch);
        let notified: Vec<_> = stored.iter().filter_map(|finished| notice(finished)).collect();
        let notified: Vec<_> = notified.iter().map(|id| &**id).collect();
        self.relay.commit(transaction, notices, &notified).await.map(drop)
    }

    /// Remembers that a task will be tried again, or is dead. It may be that of a notice.
    pub fn ended_without_result(&self, kind: &str, task_id: &str, is_dead: bool) {
        if kind == alert::KIND {
            self.relay.ended_without_result(task_id, is_dead);
        }
    }

    /// Publishes notices, and looks for what happens to alarms without a reading, until the worker stops.
    pub async fn run(&self, context: &SinkContext) {
        let relay = supervise::restarting("alert-relay", (&self.relay, context), |(relay, context)| {
            relay.run(context).boxed()
        });
        let silences = self.silences.as_ref().map(|silences| {
            let monitor = SilenceMonitor::new(self.pool.clone(), &self.tables, Arc::clone(silences));
            let state = (monitor, &self.relay, context);
            supervise::restarting("silence-monitor", state, |(monitor, relay, context)| {
                monitor.run(context, relay).boxed()
            })
        });
        let rules = Arc::clone(&self.rules);
        let alarms = AlarmMonitor::new(self.pool.clone(), &self.tables, rules, &self.evaluator, &self.relay);
        let alarms = supervise::restarting("alarm-monitor", (alarms, context), |(alarms, context)| {
            alarms.run(context).boxed()
        });
        let silences = OptionFuture::from(silences.map(IntoFuture::into_future));
        let _ = tokio::join!(relay.into_future(), alarms.into_future(), silences);
    }
}

/// The task of a changed reading.
fn task_id<'a>(batch: &'a [FinishedTask], reading: &ChangedReading<'a>) -> &'a str {
    batch[reading.result].envelope.id.as_str()
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
