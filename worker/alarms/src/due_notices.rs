//! Notices that become due with time: reminders of open alarms, and what was held back while an alarm was muted.

use deadpool_postgres::Transaction;
use garenne_database::{QueryResult, Tables, column, muting};
use time::OffsetDateTime;
use tokio_postgres::Row;

use crate::{
    alarm::{Alarm, AlarmEvent},
    micros::micros,
    notice::{Notice, NoticeSource},
    rule_registry::latest_rule,
};

/// Notices of one transaction, at most.
pub(super) const AT_ONCE: usize = 500;

/// The statements for a fleet's due notices.
pub(super) struct DueNotices {
    find_open: String,
    mark_open: String,
    find_withheld: String,
    mark_withheld: String,
}

impl DueNotices {
    pub(super) fn new(tables: &Tables) -> Self {
        let is_muted = muting::is_muted(tables);
        let maintenance_ended = muting::has_maintenance(
            tables,
            "m.starts < m.ends AND m.ends > a.notified_at AND m.ends <= now()",
        );
        let latest = latest_rule(tables);
        let columns =
            "a.id, a.device, a.metric, a.rule, a.severity, a.since, a.upto, a.ended, a.value, r.describes,
                       r.unit, r.webhook, now()";
        // Locked rows are those of another worker, which sends these notices, or of an alarm that changes.
        let find_open = format!(
            "SELECT {columns}, a.notified_at, a.is_missing, CASE
                 WHEN a.snoozed_until > a.notified_at THEN 'snooze-ended'
                 WHEN {maintenance_ended} THEN 'maintenance-ended'
                 ELSE 'still-open' END
             FROM {tables}_alarms AS a {latest}
             WHERE a.ended IS NULL AND a.withdrawn_at IS NULL AND NOT {is_muted} AND (
                 a.notified_at IS NULL OR a.snoozed_until > a.notified_at OR {maintenance_ended}
                 OR a.acked_at IS NULL AND a.notified_at + make_interval(secs => r.remind_seconds) <= now())
             ORDER BY a.since LIMIT {AT_ONCE} FOR UPDATE OF a SKIP LOCKED"
        );
        let find_withheld = format!(
            "SELECT {columns}, a.withdrawn_at IS NOT NULL, a.closed_reason
             FROM {tables}_alarms AS a {latest}
             WHERE a.clear_withheld AND NOT {is_muted}
             ORDER BY a.id LIMIT {AT_ONCE} FOR UPDATE OF a SKIP LOCKED"
        );
        let mark = |set: &str| format!("UPDATE {tables}_alarms SET {set} WHERE id = ANY($1)");
        Self {
            find_open,
            mark_open: mark("notified_at = now()"),
            find_withheld,
            mark_withheld: mark("clear_withheld = false"),
        }
    }

    /// Marks the alarms whose notices are due, up to [`AT_ONCE`] of either kind, and returns the notices.
    pub(super) async fn take(&self, transaction: &Transaction<'_>) -> QueryResult<Vec<Notice>> {
        let mut notices = Vec::new();
        for row in self.mark(transaction, &self.find_open, &self.mark_open).await? {
            let (source, alarm) = (source(&row), alarm(&row));
            notices.push(match row.get::<_, Option<OffsetDateTime>>(13) {
                Some(previous) => source.reminder(&alarm, row.get(15), micros(previous), micros(row.get(12))),
                None => {
                    let notice = source.alert(None, &alarm, AlarmEvent::Raised);
                    if row.get(14) { notice.with_reason("never-sent") } else { notice }
                }
            });
        }
        for row in self.mark(transaction, &self.find_withheld, &self.mark_withheld).await? {
            let mut notice = source(&row).alert(None, &alarm(&row), AlarmEvent::Cleared);
            if row.get(13) {
                notice = notice.withdrawn();
            }
            notices.push(match row.get::<_, Option<&str>>(14) {
                Some(reason) => notice.with_reason(reason),
                None => notice,
            });
        }
        // Whether they are muted was decided here.
        for notice in &mut notices {
            notice.event = None;
        }
        Ok(notices)
    }

    async fn mark(&self, transaction: &Transaction<'_>, find: &str, mark: &str) -> QueryResult<Vec<Row>> {
        let find = transaction.prepare_cached(find).await?;
        let found = transaction.query(&find, &[]).await?;
        if !found.is_empty() {
            let mark = transaction.prepare_cached(mark).await?;
            let ids = column(&found, |row| row.get::<_, &str>(0));
            transaction.execute(&mark, &[&ids]).await?;
        }
        Ok(found)
    }
}

fn source(row: &Row) -> NoticeSource<'_> {
    NoticeSource::stored(row, [1, 2, 3, 4, 9, 10, 11])
}

fn alarm(row: &Row) -> Alarm {
    Alarm {
        id: row.get(0),
        since: micros(row.get(5)),
        upto: micros(row.get(6)),
        ended: row.get::<_, Option<_>>(7).map(micros),
        value: row.get(8),
    }
}
