//! The rules that the fleet's workers have.
//!
//! Each worker announces the rules of its file every [`ANNOUNCE_INTERVAL`]. A rule that no worker has announced for
//! [`RULE_LIFETIME`] was removed, and its open alarms are closed. Workers with different files, such as during a rolling
//! upgrade, keep the rules of each other: a rule is removed only after the last worker that has it is gone.

use std::time::Duration;

use deadpool_postgres::{Object, Transaction};
use garenne_common::pattern::NamePattern;
use garenne_database::{Parameters, QueryResult, Tables, column, muting::device_matches};
use tokio_postgres::Row;

use crate::{
    alarm::{Alarm, AlarmEvent, Rule, Rules},
    micros::micros,
    notice::{Notice, NoticeSource, uuid, webhook},
    series_locks,
};

/// How often a worker announces its rules.
pub(super) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(10);
/// The time without an announcement after which a rule counts as removed.
pub(super) const RULE_LIFETIME: Duration = Duration::from_secs(60);
/// Rows that a statement changes, at most.
const AT_ONCE: usize = 500;
/// The reason of an alarm whose rule was removed.
const RULE_REMOVED: &str = "rule-removed";

/// The statements for a fleet's rules.
pub(super) struct RuleRegistry {
    tables: Tables,
    announce: String,
    delete_old: String,
    find_unruled: String,
    close: String,
}

/// A text that is the same for equal rules.
pub(super) fn definition(rule: &Rule) -> String {
    uuid(&[&format!("{rule:?}")]).to_string()
}

/// The devices that a rule expects, one a line.
fn expected(rule: &Rule) -> String {
    rule.expected.iter().map(NamePattern::as_str).collect::<Vec<_>>().join("\n")
}

impl RuleRegistry {
    pub(super) fn new(tables: &Tables) -> Self {
        let lifetime = format!("interval '{} seconds'", RULE_LIFETIME.as_secs());
        // Most announcements change nothing: another worker with the same file has just made it.
        let announce = format!(
            "INSERT INTO {tables}_rules AS known
                 (name, definition, device, metric, describes, unit, webhook, remind_seconds, expected)
             SELECT name, definition, device, metric, describes, unit, webhook, remind_seconds,
                    string_to_array(expected, E'\\n')
             FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                         $8::float8[], $9::text[])
                  AS input(name, definition, device, metric, describes, unit, webhook, remind_seconds, expected)
             ORDER BY name, definition
             ON CONFLICT (name, definition) DO UPDATE SET announced_at = now(),
                 first_seen = CASE WHEN known.announced_at < now() - {lifetime} THEN now() ELSE known.first_seen END
             WHERE known.announced_at < now() - make_interval(secs => $10)"
        );
        let delete_old =
            format!("DELETE FROM {tables}_rules WHERE announced_at < now() - interval '30 days'");
        let matches = device_matches("known.device", "a.device");
        let find_unruled = format!(
            "SELECT a.id, a.device, a.metric FROM {tables}_alarms AS a
             WHERE a.ended IS NULL AND a.withdrawn_at IS NULL AND NOT EXISTS (
                 SELECT FROM {tables}_rules AS known
                 WHERE known.name = a.rule AND known.metric = a.metric AND {matches}
                   AND known.announced_at >= now() - {lifetime}
                   AND (NOT a.is_missing OR a.device = ANY(known.expected)))
             ORDER BY a.since LIMIT {AT_ONCE}"
        );
        // A silence has no reading that it lasts to.
        let latest = latest_rule(tables);
        let close = format!(
            "WITH closed AS (
                 UPDATE {tables}_alarms AS a SET closed_reason = '{RULE_REMOVED}', closed_at = now(),
                     ended = CASE WHEN a.value IS NULL THEN greatest(a.since, now()) ELSE a.upto END
                 WHERE a.id = ANY($1) AND a.ended IS NULL AND a.withdrawn_at IS NULL
                 RETURNING a.*)
             SELECT a.id, a.device, a.metric, a.rule, a.severity, a.since, a.upto, a.ended, a.value,
                    r.describes, r.unit, r.webhook
             FROM closed AS a {latest}"
        );
        Self { tables: tables.clone(), announce, delete_old, find_unruled, close }
    }

    pub(super) async fn announce(&self, client: &Object, rules: &Rules) -> QueryResult<()> {
        let rules: Vec<_> = rules.iter().collect();
        if rules.is_empty() {
            return Ok(());
        }
        let statement = client.prepare_cached(&self.announce).await?;
        let recently = ANNOUNCE_INTERVAL.as_secs_f64() / 2.0;
        let parameters: Parameters<'_, 10> = [
            &column(&rules, |rule| rule.name.as_str()),
            &column(&rules, |rule| definition(rule)),
            &column(&rules, |rule| rule.device.as_str()),
            &column(&rules, |rule| rule.metric.as_str()),
            &column(&rules, |rule| rule.condition.describe()),
            &column(&rules, |rule| rule.unit.map(|unit| unit.symbol())),
            &column(&rules, |rule| webhook(rule)),
            &column(&rules, |rule| rule.remind_every.map(|every| every.as_secs_f64())),
            &column(&rules, |rule| expected(rule)),
            &recently,
        ];
        client.execute(&statement, &parameters).await.map(drop)
    }

    /// Closes open alarms that no announced rule applies to, up to [`AT_ONCE`]. Only right after the fleet has been
    /// announcing for [`RULE_LIFETIME`]. Returns the notices.
    pub(super) async fn close_unruled(&self, transaction: &Transaction<'_>) -> QueryResult<Vec<Notice>> {
        transaction.execute(&self.delete_old, &[]).await?;
        let find = transaction.prepare_cached(&self.find_unruled).await?;
        let found = transaction.query(&find, &[]).await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        // A worker that judges the series stores the alarm as it was when it began.
        let series = found.iter().map(|row| (row.get(1), row.get(2))).collect();
        series_locks::lock(transaction, &self.tables, &series).await?;
        let close = transaction.prepare_cached(&self.close).await?;
        let ids = column(&found, |row| row.get::<_, &str>(0));
        let closed = transaction.query(&close, &[&ids]).await?;
        let notice = |row: &Row| {
            let alarm = Alarm {
                id: row.get(0),
                since: micros(row.get(5)),
                upto: micros(row.get(6)),
                ended: Some(micros(row.get(7))),
                value: row.get(8),
            };
            let source = NoticeSource::stored(row, [1, 2, 3, 4, 9, 10, 11]);
            source.alert(None, &alarm, AlarmEvent::Cleared).with_reason(RULE_REMOVED)
        };
        Ok(closed.iter().map(notice).collect())
    }
}

/// Joins the rule of the alarm `a` as `r`, in the form that was announced last.
pub(super) fn latest_rule(tables: &Tables) -> String {
    format!(
        "LEFT JOIN LATERAL (
             SELECT describes, unit, webhook, remind_seconds FROM {tables}_rules AS known WHERE known.name = a.rule
             ORDER BY announced_at DESC, first_seen DESC LIMIT 1) AS r ON true"
    )
}
