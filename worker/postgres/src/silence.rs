//! `reading.watch`: detects that a device stopped sending.
//!
//! A missing reading starts no task, so a task has to check for it. The first reading of a device's metric
//! that a `silent_for` rule matches starts one `reading.watch` task. The task waits in the retry ladder until
//! the silence would be long enough, checks the store, and waits again. The broker keeps the time, so no
//! worker holds state, and there is one message per device, metric and rule regardless of the number of
//! readings.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Transaction;
use serde_json::value::RawValue;

use crate::{
    alarm_evaluator::{AlarmEvaluator, AlarmRow, micros},
    database::Database,
    error::{DatabaseError, QueryResult},
    notice::{alarm_id, alert_notice},
    outbox,
    pool::PostgresPool,
    tables::Tables,
    watch::{Watch, Watched},
};
use garenne::{TaskContext, TaskError, WorkerBuilder, sink::FollowUp};
use garenne_sensors::alarm::{Alarm, AlarmEvent, Condition, Rules};

/// The longest wait between the first check that finds silence and the one that confirms it. Gives a fleet
/// that was down the time to store its backlog.
const MAX_CONFIRMATION_DELAY: Duration = Duration::from_secs(60);

/// The result of one check for silence.
enum SilenceCheck {
    /// The device is not silent, or not certainly so: check again after this time.
    CheckAgain(Duration),
    /// The device is silent: start these tasks. The watch ends.
    Silent(Vec<FollowUp>),
    /// The watch ends without an alarm: another watch replaced it, or the rule or the readings are gone.
    Ended,
}

/// Registers the kind for the fleet with this prefix. Connects on the first check.
pub fn register(
    builder: WorkerBuilder,
    database: Database,
    prefix: &str,
    rules: Arc<Rules>,
) -> WorkerBuilder {
    let alarms = AlarmEvaluator { rules, tables: Tables::new(prefix) };
    let detector = Arc::new(SilenceDetector { pool: PostgresPool::new(database), alarms });
    builder.handle(move |cx: TaskContext, watch: Watch| {
        let detector = Arc::clone(&detector);
        async move {
            match detector.check(cx.id().as_str(), &watch).await? {
                SilenceCheck::CheckAgain(wait) => Err(TaskError::snooze(wait)),
                SilenceCheck::Ended => Ok(Watched { silent: false }),
                SilenceCheck::Silent(starts) => {
                    for start in starts {
                        let payload: &RawValue =
                            serde_json::from_slice(&start.body).map_err(TaskError::reject)?;
                        cx.follow_up_as(start.id, start.kind.as_str(), &payload)?;
                    }
                    Ok(Watched { silent: true })
                }
            }
        }
    })
}

/// Decides whether a device went silent, by the database's clock.
struct SilenceDetector {
    pool: PostgresPool,
    alarms: AlarmEvaluator,
}

impl SilenceDetector {
    /// Compares the age of the newest stored reading of a device's metric with the watch's rule. A repeated call for
    /// a watch that found silence returns the same tasks.
    async fn check(&self, watch_id: &str, watch: &Watch) -> Result<SilenceCheck, DatabaseError> {
        let mut client = self.pool.client().await?;
        let transaction = client.transaction().await?;
        let outcome = self.check_with(&transaction, watch_id, watch).await?;
        transaction.commit().await?;
        Ok(outcome)
    }

    async fn check_with(
        &self,
        transaction: &Transaction<'_>,
        id: &str,
        watch: &Watch,
    ) -> QueryResult<SilenceCheck> {
        let Watch { device, metric, rule: name } = watch;
        let tables = &self.alarms.tables;
        self.alarms.lock(transaction, [(device.as_str(), metric.as_str())]).await?;
        let of = "WHERE device = $1 AND metric = $2";
        let known = format!("SELECT watch_id, missed IS NOT NULL FROM {tables}_watches {of} AND rule = $3");
        let known = transaction.query_opt(&known, &[device, metric, name]).await?;
        let Some(known) = known.filter(|row| row.get::<_, &str>(0) == id) else {
            // Either this watch found silence and its task was redelivered, or another watch replaced it.
            let starts = outbox::load(transaction, tables, &[id]).await?.remove(id);
            return Ok(starts.map_or(SilenceCheck::Ended, SilenceCheck::Silent));
        };
        let newest = format!(
            "SELECT time, greatest(0, extract(epoch FROM clock_timestamp() - stored_at))::float8 FROM {tables}_readings {of}
             ORDER BY time DESC LIMIT 1"
        );
        let newest = transaction.query_opt(&newest, &[device, metric]).await?;
        let rule = self.alarms.rules.matching(device, metric).find_map(|rule| match rule.condition {
            Condition::Silent { duration } if rule.name == *name => Some((rule, duration)),
            _ => None,
        });
        let (Some(newest), Some((rule, duration))) = (newest, rule) else {
            self.end_watch(transaction, watch).await?;
            return Ok(SilenceCheck::Ended);
        };
        let silence = Duration::try_from_secs_f64(newest.get(1)).unwrap_or(Duration::MAX);
        // Both checks must find the silence, so that a backlog can be stored in between.
        let missed = silence >= duration;
        if !missed || !known.get::<_, bool>(1) {
            let update = format!(
                "UPDATE {tables}_watches SET missed = CASE WHEN $4 THEN now() END {of} AND rule = $3"
            );
            transaction.execute(&update, &[device, metric, name, &missed]).await?;
            let wait = if missed { duration.min(MAX_CONFIRMATION_DELAY) } else { duration - silence };
            return Ok(SilenceCheck::CheckAgain(wait));
        }
        let since = micros(newest.get(0));
        let alarm =
            Alarm { id: alarm_id(device, metric, name, since), since, upto: since, ended: None, value: None };
        let notice = alert_notice(device, metric, id, rule, &alarm, AlarmEvent::Raised);
        self.alarms.store_alarms(transaction, &[AlarmRow { device, metric, rule: name, alarm }]).await?;
        self.end_watch(transaction, watch).await?;
        outbox::store(transaction, tables, &[notice]).await?;
        let starts = outbox::load(transaction, tables, &[id]).await?.remove(id);
        Ok(SilenceCheck::Silent(starts.unwrap_or_default()))
    }

    async fn end_watch(
        &self,
        transaction: &Transaction<'_>,
        Watch { device, metric, rule }: &Watch,
    ) -> QueryResult<()> {
        let tables = &self.alarms.tables;
        let delete = format!("DELETE FROM {tables}_watches WHERE device = $1 AND metric = $2 AND rule = $3");
        transaction.execute(&delete, &[device, metric, rule]).await.map(drop)
    }
}
