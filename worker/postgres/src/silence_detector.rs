//! Decides whether a device went silent, by the database's clock.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Transaction;
use futures_util::future::BoxFuture;

use crate::{
    alarm_evaluator::{AlarmEvaluator, AlarmRow, micros},
    database::Database,
    error::{PostgresError, error_detail},
    notice::{alarm_id, alert_notice},
    outbox,
    pool::PostgresPool,
    tables::Tables,
};
use garenne_sensors::{
    alarm::{
        Rules,
        condition::Condition,
        reconcile::{Alarm, AlarmEvent},
    },
    store::{SilenceCheck, SilenceDetector, StoreError},
};

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
    ///
    /// # Errors
    /// [`PostgresError::Url`] and [`PostgresError::Mode`].
    pub fn new(database: Database, prefix: &str, rules: Arc<Rules>) -> Result<Self, PostgresError> {
        let alarms = AlarmEvaluator { rules, tables: Tables::new(prefix) };
        Ok(Self { pool: PostgresPool::new(database)?, alarms })
    }

    async fn check_in_transaction(
        &self,
        id: &str,
        device: &str,
        metric: &str,
        rule: &str,
    ) -> Result<SilenceCheck, String> {
        let mut client = self.pool.client().await.map_err(|failure| failure.detail)?;
        let transaction = client.transaction().await.map_err(|e| error_detail(&e))?;
        let outcome = self.check_with(&transaction, id, device, metric, rule).await;
        let outcome = outcome.map_err(|e| error_detail(&e))?;
        transaction.commit().await.map_err(|e| error_detail(&e))?;
        Ok(outcome)
    }

    async fn check_with(
        &self,
        transaction: &Transaction<'_>,
        id: &str,
        device: &str,
        metric: &str,
        name: &str,
    ) -> Result<SilenceCheck, tokio_postgres::Error> {
        let Tables { readings, watches, .. } = &self.alarms.tables;
        self.alarms.lock(transaction, [(device, metric)]).await?;
        let of = "WHERE device = $1 AND metric = $2";
        let watch = format!("SELECT watch_id, missed IS NOT NULL FROM {watches} {of} AND rule = $3");
        let watch = transaction.query_opt(&watch, &[&device, &metric, &name]).await?;
        let Some(watch) = watch.filter(|watch| watch.get::<_, &str>(0) == id) else {
            // Either this watch found silence and its task was redelivered, or another watch replaced it.
            let starts = outbox::load(transaction, &self.alarms.tables, &[id]).await?.remove(id);
            return Ok(starts.map_or(SilenceCheck::Ended, SilenceCheck::Silent));
        };
        let newest = format!(
            "SELECT time, greatest(0, extract(epoch FROM clock_timestamp() - stored_at))::float8 FROM {readings} {of}
             ORDER BY time DESC LIMIT 1"
        );
        let newest = transaction.query_opt(&newest, &[&device, &metric]).await?;
        let rule = self.alarms.rules.matching(device, metric).find(|rule| rule.name == name);
        let (Some(newest), Some(rule)) = (newest, rule) else {
            self.end_watch(transaction, device, metric, name).await?;
            return Ok(SilenceCheck::Ended);
        };
        let Condition::Silent { duration } = rule.condition else {
            self.end_watch(transaction, device, metric, name).await?;
            return Ok(SilenceCheck::Ended);
        };
        let silence = Duration::try_from_secs_f64(newest.get(1)).unwrap_or(Duration::MAX);
        // Both checks must find the silence, so that a backlog can be stored in between.
        let missed = silence >= duration;
        if !missed || !watch.get::<_, bool>(1) {
            let update =
                format!("UPDATE {watches} SET missed = CASE WHEN $4 THEN now() END {of} AND rule = $3");
            transaction.execute(&update, &[&device, &metric, &name, &missed]).await?;
            let wait = if missed { duration.min(MAX_CONFIRMATION_DELAY) } else { duration - silence };
            return Ok(SilenceCheck::CheckAgain(wait));
        }
        let since = micros(newest.get(0));
        let alarm =
            Alarm { id: alarm_id(device, metric, name, since), since, upto: since, ended: None, value: None };
        let notice = alert_notice(device, metric, id, rule, &alarm, AlarmEvent::Raised);
        self.alarms.store_alarms(transaction, &[AlarmRow { device, metric, rule: name, alarm }]).await?;
        self.end_watch(transaction, device, metric, name).await?;
        outbox::store(transaction, &self.alarms.tables, &[notice]).await?;
        let starts = outbox::load(transaction, &self.alarms.tables, &[id]).await?.remove(id);
        Ok(SilenceCheck::Silent(starts.unwrap_or_default()))
    }

    async fn end_watch(
        &self,
        transaction: &Transaction<'_>,
        device: &str,
        metric: &str,
        rule: &str,
    ) -> Result<(), tokio_postgres::Error> {
        let delete = format!(
            "DELETE FROM {} WHERE device = $1 AND metric = $2 AND rule = $3",
            self.alarms.tables.watches
        );
        transaction.execute(&delete, &[&device, &metric, &rule]).await.map(drop)
    }
}

impl SilenceDetector for PostgresSilenceDetector {
    fn check<'a>(
        &'a self,
        watch_id: &'a str,
        device: &'a str,
        metric: &'a str,
        rule: &'a str,
    ) -> BoxFuture<'a, Result<SilenceCheck, StoreError>> {
        Box::pin(async move {
            self.check_in_transaction(watch_id, device, metric, rule).await.map_err(StoreError::new)
        })
    }
}
