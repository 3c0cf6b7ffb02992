//! Whether a device has gone silent: asked by `reading.watch`, by the database's clock.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Transaction;
use time::OffsetDateTime;

use super::{
    Database, PostgresError, Tables,
    alarms::{Alarms, instant},
    notice::{alarm_id, notice},
    server::{Server, explain},
};
use crate::alarm::{
    Rules,
    reconcile::{Alarm, News},
    rules::Condition,
};
use garenne::sink::Start;

/// After a fleet was away its backlog must be stored before anybody is called silent.
const SECOND_LOOK: Duration = Duration::from_secs(60);

/// Looks for what does not come.
pub struct Silences {
    server: Server,
    alarms: Alarms,
}

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Not silent, or not for certain: look again then.
    Again(Duration),
    /// Silent: this is to be told, and the watch is over until the device is heard of.
    Silent(Vec<Start>),
    /// Nobody wants to know any longer.
    Over,
}

impl Silences {
    /// Those of the fleet with this prefix. Connects when it is first asked.
    ///
    /// # Errors
    /// [`PostgresError::Url`].
    pub fn new(database: Database, prefix: &str, rules: Arc<Rules>) -> Result<Self, PostgresError> {
        Ok(Self { server: Server::new(database)?, alarms: Alarms { rules, tables: Tables::new(prefix) } })
    }

    /// Looks for the newest reading, on behalf of the watch `id`.
    ///
    /// # Errors
    /// What Postgres or the way there says; it may pass.
    pub(crate) async fn look(
        &self,
        id: &str,
        device: &str,
        metric: &str,
        rule: &str,
    ) -> Result<Look, String> {
        let mut client = self.server.client().await.map_err(|setback| setback.detail)?;
        let transaction = client.transaction().await.map_err(|e| explain(&e))?;
        let found = self.look_in(&transaction, id, device, metric, rule).await.map_err(|e| explain(&e))?;
        transaction.commit().await.map_err(|e| explain(&e))?;
        Ok(found)
    }

    async fn look_in(
        &self,
        transaction: &Transaction<'_>,
        id: &str,
        device: &str,
        metric: &str,
        name: &str,
    ) -> Result<Look, tokio_postgres::Error> {
        let Tables { readings, watches, .. } = &self.alarms.tables;
        self.alarms.lock(transaction, [(device, metric)]).await?;
        let of = "WHERE device = $1 AND metric = $2";
        let watch = format!("SELECT watch_id, missed IS NOT NULL FROM {watches} {of} AND rule = $3");
        let watch = transaction.query_opt(&watch, &[&device, &metric, &name]).await?;
        let Some(watch) = watch.filter(|watch| watch.get::<_, &str>(0) == id) else {
            // It was this one that noticed, and then was delivered again; or another has taken over.
            let starts = self.alarms.starts(transaction, &[id]).await?.remove(id);
            return Ok(starts.map_or(Look::Over, Look::Silent));
        };
        let newest = format!(
            "SELECT time, greatest(0, extract(generation FROM clock_timestamp() - stored_at))::float8 FROM {readings} {of}
             ORDER BY time DESC LIMIT 1"
        );
        let newest = transaction.query_opt(&newest, &[&device, &metric]).await?;
        let rule = self.alarms.rules.of(device, metric).find(|rule| rule.name == name);
        let (Some(newest), Some(rule)) = (newest, rule) else {
            self.end(transaction, device, metric, name).await?;
            return Ok(Look::Over);
        };
        let Condition::Silent { span } = rule.condition else {
            self.end(transaction, device, metric, name).await?;
            return Ok(Look::Over);
        };
        let quiet = Duration::try_from_secs_f64(newest.get(1)).unwrap_or(Duration::MAX);
        let missed = !quiet.lt(&span);
        if !missed || !watch.get::<_, bool>(1) {
            let note =
                format!("UPDATE {watches} SET missed = CASE WHEN $4 THEN now() END {of} AND rule = $3");
            transaction.execute(&note, &[&device, &metric, &name, &missed]).await?;
            return Ok(Look::Again(if missed { span.min(SECOND_LOOK) } else { span - quiet }));
        }
        let last: OffsetDateTime = newest.get(0);
        let since = i64::try_from(last.unix_timestamp_nanos() / 1000).unwrap_or_default();
        debug_assert_eq!(instant(since), last);
        let alarm =
            Alarm { id: alarm_id(device, metric, name, since), since, upto: since, ended: None, value: None };
        self.alarms.store(transaction, &[(device, metric, &rule, &alarm)]).await?;
        self.end(transaction, device, metric, name).await?;
        let notice = notice(device, metric, id, rule, &alarm, News::Raised);
        self.alarms.write_down(transaction, &[notice]).await?;
        let starts = self.alarms.starts(transaction, &[id]).await?.remove(id);
        Ok(Look::Silent(starts.unwrap_or_default()))
    }

    async fn end(
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
