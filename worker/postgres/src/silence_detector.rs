//! Decides whether a device went silent, by the database's clock.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Transaction;
use futures_util::future::BoxFuture;

use crate::{
    alarm_evaluator::{AlarmEvaluator, AlarmRow, micros},
    database::Database,
    error::{DatabaseError, QueryResult},
    notice::{alarm_id, alert_notice},
    outbox,
    pool::PostgresPool,
    tables::Tables,
};
use garenne::handler::TaskError;
use garenne_sensors::alarm::{Alarm, AlarmEvent, Condition, Rules};
use garenne_sensors::reading::watch::{SilenceCheck, SilenceDetector, Watch};

/// The longest wait between the first check that finds silence and the one that confirms it. Gives a fleet
/// that was down the time to store its backlog.
const MAX_CONFIRMATION_DELAY: Duration = Duration::from_secs(60);

/// A [`SilenceDetector`] over the tables that [`PostgresSink`](crate::PostgresSink) writes. Connects on the
/// first check.
pub struct PostgresSilenceDetector {
    pool: PostgresPool,
    alarms: AlarmEvaluator,
}

impl PostgresSilenceDetector {
    /// A detector for the fleet with this prefix.
    pub fn new(database: Database, prefix: &str, rules: Arc<Rules>) -> Self {
        let alarms = AlarmEvaluator { rules, tables: Tables::new(prefix) };
        Self { pool: PostgresPool::new(database), alarms }
    }

    async fn check_with(
        &self,
        transaction: &Transaction<'_>,
        id: &str,
        watch: &Watch,
    ) -> QueryResult<SilenceCheck> {
        let Watch { device, metric, rule: name } = watch;
        let Tables { readings, watches, .. } = &self.alarms.tables;
        self.alarms.lock(transaction, [(device.as_str(), metric.as_str())]).await?;
        let of = "WHERE device = $1 AND metric = $2";
        let known = format!("SELECT watch_id, missed IS NOT NULL FROM {watches} {of} AND rule = $3");
        let known = transaction.query_opt(&known, &[device, metric, name]).await?;
        let Some(known) = known.filter(|row| row.get::<_, &str>(0) == id) else {
            // Either this watch found silence and its task was redelivered, or another watch replaced it.
            let starts = outbox::load(transaction, &self.alarms.tables, &[id]).await?.remove(id);
            return Ok(starts.map_or(SilenceCheck::Ended, SilenceCheck::Silent));
        };
        let newest = format!(
            "SELECT time, greatest(0, extract(epoch FROM clock_timestamp() - stored_at))::float8 FROM {readings} {of}
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
            let update =
                format!("UPDATE {watches} SET missed = CASE WHEN $4 THEN now() END {of} AND rule = $3");
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
        outbox::store(transaction, &self.alarms.tables, &[notice]).await?;
        let starts = outbox::load(transaction, &self.alarms.tables, &[id]).await?.remove(id);
        Ok(SilenceCheck::Silent(starts.unwrap_or_default()))
    }

    async fn end_watch(
        &self,
        transaction: &Transaction<'_>,
        Watch { device, metric, rule }: &Watch,
    ) -> QueryResult<()> {
        let watches = &self.alarms.tables.watches;
        let delete = format!("DELETE FROM {watches} WHERE device = $1 AND metric = $2 AND rule = $3");
        transaction.execute(&delete, &[device, metric, rule]).await.map(drop)
    }
}

impl SilenceDetector for PostgresSilenceDetector {
    fn check<'a>(
        &'a self,
        watch_id: &'a str,
        watch: &'a Watch,
    ) -> BoxFuture<'a, Result<SilenceCheck, TaskError>> {
        let check = async move {
            let mut client = self.pool.client().await?;
            let transaction = client.transaction().await?;
            let outcome = self.check_with(&transaction, watch_id, watch).await?;
            transaction.commit().await?;
            Ok(outcome)
        };
        Box::pin(async { check.await.map_err(|error: DatabaseError| TaskError::retry(error)) })
    }
}
