//! The outbox: notices that are stored with the alarms that they report.
//!
//! A notice is stored in the transaction that changes the alarm, so that there is neither an alarm without its notice
//! nor a notice of a change that was undone. The [relay](crate::relay) publishes it later and marks it.
//!
//! The notices of an alarm are numbered, and leave one after another: a receiver gets `raised` before `cleared`, also if its
//! task is tried again for hours. The sink records the end of a notice's task with its result. Nobody tells of a task that was
//! purged or that the broker dead-lettered, so one that has not been heard of is waited for only for some time
//! (`alert.notice_wait`). The time in which operators have paused the lane of alerts does not count.
//!
//! No notice is stored while the alarm is muted. The row of the alarm has what its receivers know, and the
//! [alarm monitor](crate::alarm_monitor) stores the notices that are due afterwards.

use std::{collections::BTreeMap, time::Duration};

use deadpool_postgres::Transaction;
use garenne_database::{Parameters, QueryResult, Tables, column, muting};
use garenne_protocol::task::{ContentType, Kind, NewTask, TaskId, TraceContext};
use serde_json::Value;
use tokio_postgres::{Client, types::Json};

use crate::{alarm::AlarmEvent, fleet_check, notice::Notice};

/// After this time, in which the fleet has been checking its alarms without a gap, the owner of a notice counts as gone. A
/// relay tries again more often.
const OWNER_TIME: Duration = Duration::from_secs(20);
/// The age from which on a notice has no owner, so that none is lost if checks are always interrupted.
const MAX_OWNED: Duration = Duration::from_secs(3600);
/// How long the next notice of an alarm waits for the end of the one before after its task was tried. Attempts are at most an
/// hour apart.
const MAX_BETWEEN_ATTEMPTS: Duration = Duration::from_secs(2 * 3600);
/// The row of the monitor with the time at which a relay last saw that the lane of alerts is paused.
const PAUSED: &str = "paused-alerts";
/// How long after that the pause may have ended. Relays look more often.
const MAX_UNSEEN_PAUSE: Duration = Duration::from_secs(10);
/// Notices that are deleted by one statement, at most.
const DELETED_AT_ONCE: i64 = 1000;

/// The statements for a fleet's notices.
pub(super) struct OutboxStatements {
    mute: String,
    store: String,
    lock: String,
    mark: String,
    end: String,
    record: String,
    record_pause: String,
    delete: String,
}

impl OutboxStatements {
    /// The next notice of an alarm waits for `notice_wait` for the end of the one before, after that was published.
    pub(super) fn new(tables: &Tables, notice_wait: Duration) -> Self {
        let table = format!("{tables}_notices");
        let is_muted = muting::is_muted(tables);
        let attempts = format!("{tables}_notice_attempts");
        let (owner_time, max_owned) = (OWNER_TIME.as_secs(), MAX_OWNED.as_secs());
        let (notice_wait, between_attempts) = (notice_wait.as_secs_f64(), MAX_BETWEEN_ATTEMPTS.as_secs());
        let paused_wait = notice_wait + MAX_UNSEEN_PAUSE.as_secs_f64();
        let is_checking = fleet_check::is_uninterrupted(tables, OWNER_TIME);
        Self {
            mute: format!(
                "WITH changed AS (
                     SELECT a.id, a.notified_at, is_raised, is_cleared, {is_muted} AS is_muted
                     FROM unnest($1::text[], $2::bool[], $3::bool[]) AS input(id, is_raised, is_cleared)
                     JOIN {tables}_alarms AS a USING (id)
                 )
                 UPDATE {tables}_alarms AS alarm SET
                     notified_at = CASE WHEN is_raised AND NOT is_muted THEN now() ELSE alarm.notified_at END,
                     clear_withheld = is_cleared AND is_muted AND alarm.notified_at IS NOT NULL
                 FROM changed WHERE alarm.id = changed.id
                 RETURNING alarm.id, is_muted, changed.notified_at IS NOT NULL"
            ),
            store: format!(
                "WITH input AS (
                     SELECT *, row_number() OVER (PARTITION BY alarm ORDER BY place)::int AS number
                     FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::jsonb[], $6::text[])
                          WITH ORDINALITY AS input(id, task_id, trace, kind, payload, alarm, place)
                     WHERE NOT EXISTS (SELECT FROM {table} AS n WHERE n.id = input.id)
                 ), counted AS (
                     UPDATE {tables}_alarms AS a SET notices = a.notices + further.count
                     FROM (SELECT alarm, count(*)::int AS count FROM input GROUP BY alarm) AS further
                     WHERE a.id = further.alarm RETURNING a.id, a.notices - further.count AS before
                 )
                 INSERT INTO {table} (id, task_id, trace, kind, payload, owner, alarm, sequence)
                 SELECT input.id, task_id, trace, kind,
                        jsonb_set(payload, '{{data,sequence}}', to_jsonb(coalesce(before, 0) + number)), $7::text, alarm,
                        coalesce(before, 0) + number
                 FROM input LEFT JOIN counted ON counted.id = input.alarm
                 ON CONFLICT DO NOTHING"
            ),
            lock: format!(
                "SELECT id, task_id, trace, kind, payload FROM {table} AS n
                 WHERE published_at IS NULL AND (
                     owner IS NULL OR owner = $2 OR at < now() - interval '{max_owned} seconds'
                     OR at < now() - interval '{owner_time} seconds' AND {is_checking})
                 AND NOT EXISTS (
                     SELECT FROM (
                         SELECT id, published_at FROM {table} AS p WHERE p.alarm = n.alarm AND p.sequence < n.sequence
                         ORDER BY p.sequence DESC LIMIT 1) AS previous
                     LEFT JOIN {attempts} AS t USING (id)
                     WHERE t.has_ended IS NOT TRUE AND (
                         previous.published_at IS NULL
                         OR previous.published_at > now() - make_interval(secs => {notice_wait})
                         OR t.at > now() - interval '{between_attempts} seconds'
                         OR EXISTS (SELECT FROM {tables}_monitor WHERE name = '{PAUSED}'
                                    AND checked_at > now() - make_interval(secs => {paused_wait}))))
                 ORDER BY at, sequence LIMIT $1 FOR UPDATE SKIP LOCKED"
            ),
            mark: format!("UPDATE {table} SET published_at = now() WHERE id = ANY($1)"),
            // The next notices become those of this worker, which publishes them at once. Locked ones are being published.
            end: format!(
                "WITH ended AS (
                     INSERT INTO {attempts} AS t (id, has_ended)
                     SELECT id, true FROM {table} WHERE id = ANY($1) ORDER BY id
                     ON CONFLICT (id) DO UPDATE SET at = now(), has_ended = true WHERE NOT t.has_ended RETURNING id
                 ), next AS (
                     SELECT n.id FROM {table} AS p JOIN {table} AS n ON n.alarm = p.alarm AND n.sequence > p.sequence
                     WHERE p.id IN (SELECT id FROM ended) AND n.published_at IS NULL ORDER BY n.id
                     FOR UPDATE OF n SKIP LOCKED
                 )
                 UPDATE {table} SET owner = $2 WHERE id IN (SELECT id FROM next)"
            ),
            record: format!(
                "INSERT INTO {attempts} AS t (id, has_ended)
                 SELECT id, false FROM {table} WHERE id = ANY($1) ORDER BY id
                 ON CONFLICT (id) DO UPDATE SET at = now() WHERE NOT t.has_ended"
            ),
            record_pause: format!(
                "INSERT INTO {tables}_monitor (name, since, checked_at) VALUES ('{PAUSED}', now(), now())
                 ON CONFLICT (name) DO UPDATE SET checked_at = now()"
            ),
            delete: format!(
                "WITH gone AS (
                     DELETE FROM {table} WHERE id IN (
                         SELECT id FROM {table} WHERE published_at < now() - interval '7 days'
                         LIMIT {DELETED_AT_ONCE} FOR UPDATE SKIP LOCKED)
                     RETURNING id
                 ), forgotten AS (DELETE FROM {attempts} WHERE id IN (SELECT id FROM gone))
                 SELECT count(*) FROM gone"
            ),
        }
    }

    /// Stores notices, without those of muted alarms, whose rows must be stored before. One that is stored already stays
    /// as it is: it reports the same. `owner` will publish them. Returns whether there was any.
    pub(super) async fn store(
        &self,
        transaction: &Transaction<'_>,
        mut notices: Vec<Notice>,
        owner: Option<&str>,
    ) -> QueryResult<bool> {
        self.remove_muted(transaction, &mut notices).await?;
        if notices.is_empty() {
            return Ok(false);
        }
        let notices = &notices;
        let statement = transaction.prepare_cached(&self.store).await?;
        let ids = column(notices, |notice| notice.id.as_str());
        let task_ids = column(notices, |notice| notice.task_id.as_deref());
        let traces = column(notices, |notice| notice.trace.as_deref());
        let kinds = column(notices, |notice| notice.kind);
        let payloads = column(notices, |notice| Json(&notice.payload));
        let alarms = column(notices, |notice| notice.alarm.as_str());
        let parameters: Parameters<'_, 7> = [&ids, &task_ids, &traces, &kinds, &payloads, &alarms, &owner];
        transaction.execute(&statement, &parameters).await?;
        Ok(true)
    }

    /// Removes what the receivers must not get: changes of muted alarms, and the end of alarms that they do not know.
    async fn remove_muted(
        &self,
        transaction: &Transaction<'_>,
        notices: &mut Vec<Notice>,
    ) -> QueryResult<()> {
        let mut changes: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
        for Notice { alarm, event, .. } in notices.iter() {
            match event {
                None => continue,
                Some(AlarmEvent::Raised) => changes.entry(alarm).or_default().0 = true,
                Some(AlarmEvent::Cleared) => changes.entry(alarm).or_default().1 = true,
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        let changes: Vec<_> = changes.into_iter().collect();
        let ids = column(&changes, |(id, _)| *id);
        let raised = column(&changes, |(_, (is_raised, _))| *is_raised);
        let cleared = column(&changes, |(_, (_, is_cleared))| *is_cleared);
        let statement = transaction.prepare_cached(&self.mute).await?;
        let rows = transaction.query(&statement, &[&ids, &raised, &cleared]).await?;
        let known: BTreeMap<&str, (bool, bool)> =
            rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
        let raised: Vec<String> =
            changes.iter().filter(|(_, (is_raised, _))| *is_raised).map(|(id, _)| (*id).to_owned()).collect();
        notices.retain(|notice| match (notice.event, known.get(notice.alarm.as_str())) {
            (None, _) | (_, None) => true,
            (_, Some((true, _))) => false,
            (Some(AlarmEvent::Raised), _) => true,
            (Some(AlarmEvent::Cleared), Some((_, was_known))) => *was_known || raised.contains(&notice.alarm),
        });
        Ok(())
    }

    /// Locks unpublished notices of `owner` and of owners that are gone, the oldest first, and returns their tasks. Notices
    /// that another worker has locked, or that wait for the one before, are left out.
    pub(super) async fn lock_unpublished(
        &self,
        transaction: &Transaction<'_>,
        limit: i64,
        owner: &str,
    ) -> QueryResult<Vec<NewTask>> {
        let statement = transaction.prepare_cached(&self.lock).await?;
        let rows = transaction.query(&statement, &[&limit, &owner]).await?;
        let task = |row: &tokio_postgres::Row| {
            let (Ok(id), Ok(kind)) = (TaskId::parse(row.get(0)), Kind::parse(row.get(3))) else {
                return None;
            };
            let cause = row.get::<_, Option<&str>>(1).and_then(|cause| TaskId::parse(cause).ok());
            let trace = row.get::<_, Option<&str>>(2).and_then(|trace| TraceContext::parse(trace, None));
            let Json(payload): Json<Value> = row.get(4);
            let task = NewTask::new(kind, ContentType::Json, payload.to_string().into_bytes());
            Some(NewTask { id, trace, parent: cause.map(|cause| (cause, 1)), ..task })
        };
        Ok(rows.iter().filter_map(task).collect())
    }

    /// Marks notices as published.
    pub(super) async fn mark_published(
        &self,
        transaction: &Transaction<'_>,
        ids: &[&str],
    ) -> QueryResult<()> {
        let statement = transaction.prepare_cached(&self.mark).await?;
        transaction.execute(&statement, &[&ids]).await.map(drop)
    }

    /// Records that the tasks of notices are done or dead. Other ids are ignored. `owner` will publish the next notices.
    pub(super) async fn end(
        &self,
        transaction: &Transaction<'_>,
        ids: &[&str],
        owner: Option<&str>,
    ) -> QueryResult<()> {
        let statement = transaction.prepare_cached(&self.end).await?;
        transaction.execute(&statement, &[&ids, &owner]).await.map(drop)
    }

    /// Records that the tasks of notices were tried and will be tried again.
    pub(super) async fn record_attempts(
        &self,
        transaction: &Transaction<'_>,
        ids: &[&str],
    ) -> QueryResult<()> {
        let statement = transaction.prepare_cached(&self.record).await?;
        transaction.execute(&statement, &[&ids]).await.map(drop)
    }

    /// Records that the lane of alerts is paused, so that the tasks of notices wait in its queue.
    pub(super) async fn record_pause(&self, client: &Client) -> QueryResult<()> {
        client.execute(&self.record_pause, &[]).await.map(drop)
    }

    /// Deletes notices that were published long ago. Returns whether there may be more.
    pub(super) async fn delete_old(&self, client: &Client) -> QueryResult<bool> {
        Ok(client.query_one(&self.delete, &[]).await?.get::<_, i64>(0) == DELETED_AT_ONCE)
    }
}
