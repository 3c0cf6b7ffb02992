//! Silence: alarms of series that nothing is stored of any more.
//!
//! The table of series has a row for each device and metric, with the time at which a reading was stored last, by the
//! database's clock. A silence is raised from these rows alone, so that there is no timer that could be lost, and the
//! times of sensors do not matter. It is raised while the row is locked and cleared after the row was updated. So a
//! reading that is stored at the same moment is seen by one of the two.
//!
//! A device that never sent has no such row. The rule names the devices that it expects, and the [table of
//! rules](crate::rule_registry) since when.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use deadpool_postgres::Transaction;
use garenne_database::{Parameters, QueryResult, Tables, column, muting::device_matches};
use time::OffsetDateTime;
use tokio_postgres::Row;

use crate::{
    alarm::{Alarm, AlarmEvent, Condition, Rule, Rules},
    changed_reading::ChangedReading,
    micros::micros,
    notice::{Notice, NoticeSource, alarm_id, derived_id},
    rule_registry::definition,
};

/// Silences that are raised in one transaction, at most.
pub(super) const RAISED_AT_ONCE: usize = 500;

/// The silences of a fleet.
pub(super) struct Silences {
    rules: Arc<Rules>,
    find: String,
    raise: String,
    clear: String,
    find_missing: String,
    raise_missing: String,
    clear_missing: String,
}

impl Silences {
    /// [`None`] if no rule is about silence.
    pub(super) fn new(tables: &Tables, rules: Arc<Rules>) -> Option<Self> {
        if !rules.iter().any(|rule| silent_for(rule).is_some()) {
            return None;
        }
        let alarms = format!(
            "SELECT FROM {tables}_alarms AS a WHERE a.device = s.device AND a.metric = s.metric AND a.rule = $4"
        );
        let matches = device_matches("$2::text", "s.device");
        // A locked row is one that a reading is stored of.
        let find = format!(
            "SELECT s.device, s.stored_at, (SELECT count(*) FROM {tables}_alarms AS a WHERE a.device = s.device
                 AND a.metric = s.metric AND a.rule = $4 AND a.since >= s.stored_at AND a.closed_reason IS NOT NULL)
             FROM {tables}_series AS s
             WHERE s.metric = $1 AND {matches}
               AND s.stored_at < now() - make_interval(secs => $3)
               AND NOT EXISTS ({alarms} AND a.ended IS NULL AND a.withdrawn_at IS NULL)
               AND NOT EXISTS ({alarms} AND a.since >= s.stored_at AND a.closed_reason IS NULL)
             ORDER BY s.device LIMIT {RAISED_AT_ONCE} FOR UPDATE OF s SKIP LOCKED"
        );
        let raise = format!(
            "INSERT INTO {tables}_alarms (id, device, metric, rule, since, upto, severity, notified_at)
             SELECT id, device, $3, $4, stored_at, stored_at, $6, null
             FROM unnest($1::text[], $2::text[], $5::timestamptz[]) AS input(id, device, stored_at)
             ON CONFLICT DO NOTHING RETURNING id"
        );
        let clear = format!(
            "UPDATE {tables}_alarms AS a SET ended = greatest(a.since, clock_timestamp())
             FROM unnest($1::text[], $2::text[], $3::text[]) AS input(device, metric, rule)
             WHERE a.device = input.device AND a.metric = input.metric AND a.rule = input.rule
               AND a.ended IS NULL AND a.withdrawn_at IS NULL
             RETURNING a.device, a.metric, a.rule, a.id, a.since, a.ended"
        );
        let stored = format!("SELECT FROM {tables}_series AS s WHERE s.metric = $1");
        let stored_of_prefix = format!("{stored} AND {}", device_matches("e.device", "s.device"));
        // A device is looked up by the key; a prefix is compared with every series.
        let find_missing = format!(
            "SELECT e.device, r.first_seen FROM unnest($5::text[]) AS e(device)
             JOIN {tables}_rules AS r ON r.name = $2 AND r.definition = $3
             WHERE r.first_seen < now() - make_interval(secs => $4)
               AND NOT EXISTS ({stored} AND s.device = e.device)
               AND (right(e.device, 1) <> '*' OR NOT EXISTS ({stored_of_prefix}))
               AND NOT EXISTS (SELECT FROM {tables}_alarms AS a WHERE a.device = e.device AND a.metric = $1
                               AND a.rule = $2 AND a.ended IS NULL AND a.withdrawn_at IS NULL)
             ORDER BY e.device LIMIT {RAISED_AT_ONCE}"
        );
        let raise_missing = format!(
            "INSERT INTO {tables}_alarms (id, device, metric, rule, since, upto, severity, notified_at, is_missing)
             SELECT id, device, $3, $4, since, since, $6, null, true
             FROM unnest($1::text[], $2::text[], $5::timestamptz[]) AS input(id, device, since)
             ON CONFLICT DO NOTHING RETURNING id"
        );
        let matches = device_matches("a.device", "s.device");
        let clear_missing = format!(
            "UPDATE {tables}_alarms AS a SET ended = greatest(a.since, clock_timestamp())
             WHERE a.is_missing AND a.ended IS NULL AND a.withdrawn_at IS NULL AND a.metric = $1 AND a.rule = $2
               AND EXISTS (SELECT FROM {tables}_series AS s WHERE s.metric = a.metric AND {matches})
             RETURNING a.device, a.metric, a.rule, a.id, a.since, a.ended"
        );
        Some(Self { rules, find, raise, clear, find_missing, raise_missing, clear_missing })
    }

    /// The rules about silence, and the time after which each takes a series for silent.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&Rule, Duration)> {
        self.rules.iter().filter_map(|rule| Some((rule, silent_for(rule)?)))
    }

    /// Raises an alarm for each series that a rule finds silent, up to [`RAISED_AT_ONCE`]. Returns the notices.
    pub(super) async fn raise(
        &self,
        transaction: &Transaction<'_>,
        rule: &Rule,
        silent_for: Duration,
    ) -> QueryResult<Vec<Notice>> {
        let find = transaction.prepare_cached(&self.find).await?;
        let seconds = silent_for.as_secs_f64();
        let device = rule.device.as_str();
        let silent = transaction.query(&find, &[&rule.metric, &device, &seconds, &rule.name]).await?;
        if silent.is_empty() {
            return Ok(Vec::new());
        }
        let alarms = column(&silent, |row| {
            let (device, since): (&str, _) = (row.get(0), micros(row.get(1)));
            let mut id = alarm_id(device, &rule.metric, &rule.name, since);
            // The rule was removed and came back, while the device was silent.
            let closed: i64 = row.get(2);
            if closed > 0 {
                id = derived_id(&[&id, &closed.to_string()]);
            }
            (device, Alarm { id, since, upto: since, ended: None, value: None })
        });
        self.store_raised(transaction, rule, &self.raise, &alarms, &silent).await
    }

    /// Raises an alarm for each device that a rule expects and nothing was ever stored of, up to [`RAISED_AT_ONCE`], and
    /// clears those of devices that have sent meanwhile. Returns the number of raised alarms and the notices.
    pub(super) async fn raise_missing(
        &self,
        transaction: &Transaction<'_>,
        rule: &Rule,
        silent_for: Duration,
    ) -> QueryResult<(usize, Vec<Notice>)> {
        let clear = transaction.prepare_cached(&self.clear_missing).await?;
        let cleared = transaction.query(&clear, &[&rule.metric, &rule.name]).await?;
        let mut notices: Vec<_> = cleared.iter().map(|row| cleared_notice(row, rule, None)).collect();
        let find = transaction.prepare_cached(&self.find_missing).await?;
        let (definition, seconds) = (definition(rule), silent_for.as_secs_f64());
        let expected = column(&rule.expected, |device| device.as_str());
        let missing =
            transaction.query(&find, &[&rule.metric, &rule.name, &definition, &seconds, &expected]).await?;
        if missing.is_empty() {
            return Ok((0, notices));
        }
        let alarms = column(&missing, |row| {
            let (device, since): (&str, _) = (row.get(0), micros(row.get(1)));
            let id = alarm_id(device, &rule.metric, &rule.name, since);
            (device, Alarm { id, since, upto: since, ended: None, value: None })
        });
        let raised = self.store_raised(transaction, rule, &self.raise_missing, &alarms, &missing).await?;
        let count = raised.len();
        notices.extend(raised.into_iter().map(|notice| notice.with_reason("never-sent")));
        Ok((count, notices))
    }

    /// Stores new alarms. Returns the notices of those that no other worker has stored.
    async fn store_raised(
        &self,
        transaction: &Transaction<'_>,
        rule: &Rule,
        statement: &str,
        alarms: &[(&str, Alarm)],
        found: &[Row],
    ) -> QueryResult<Vec<Notice>> {
        let ids = column(alarms, |(_, alarm)| alarm.id.as_str());
        let devices = column(alarms, |(device, _)| *device);
        let times = column(found, |row| row.get::<_, OffsetDateTime>(1));
        let statement = transaction.prepare_cached(statement).await?;
        let severity = rule.severity.name();
        let parameters: Parameters<'_, 6> = [&ids, &devices, &rule.metric, &rule.name, &times, &severity];
        let raised = transaction.query(&statement, &parameters).await?;
        let raised: BTreeSet<&str> = raised.iter().map(|row| row.get(0)).collect();
        let describes = rule.condition.describe();
        let notice = |(device, alarm): &(&str, Alarm)| {
            NoticeSource::new(device, &rule.metric, rule, &describes).alert(None, alarm, AlarmEvent::Raised)
        };
        Ok(alarms.iter().filter(|(_, alarm)| raised.contains(alarm.id.as_str())).map(notice).collect())
    }

    /// Clears the silences of series with a changed reading, whatever its time and its flags. Must follow the update of
    /// the series. `task_id` names the task of a changed reading. Returns the notices.
    pub(super) async fn clear<'a>(
        &self,
        transaction: &Transaction<'_>,
        changed: &[ChangedReading<'a>],
        task_id: impl Fn(&ChangedReading<'a>) -> &'a str,
    ) -> QueryResult<Vec<Notice>> {
        let mut series = BTreeMap::new();
        for reading in changed {
            let row = reading.row;
            for rule in
                self.rules.matching(&row.device, &row.metric).filter(|rule| silent_for(rule).is_some())
            {
                series.insert((&*row.device, &*row.metric, rule.name.as_str()), (rule, task_id(reading)));
            }
        }
        if series.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = series.keys().copied().collect();
        let devices = column(&keys, |(device, ..)| *device);
        let metrics = column(&keys, |(_, metric, _)| *metric);
        let names = column(&keys, |(.., rule)| *rule);
        let statement = transaction.prepare_cached(&self.clear).await?;
        let cleared = transaction.query(&statement, &[&devices, &metrics, &names]).await?;
        let notice = |row: &Row| {
            let (device, metric): (&str, &str) = (row.get(0), row.get(1));
            let (rule, task_id) = series.get(&(device, metric, row.get(2)))?;
            Some(cleared_notice(row, rule, Some(task_id)))
        };
        Ok(cleared.iter().filter_map(notice).collect())
    }
}

/// The notice of a cleared alarm, of a row with device, metric, rule, id and times.
fn cleared_notice(row: &Row, rule: &Rule, task_id: Option<&str>) -> Notice {
    let (since, ended) = (micros(row.get(4)), Some(micros(row.get(5))));
    let alarm = Alarm { id: row.get(3), since, upto: since, ended, value: None };
    let describes = rule.condition.describe();
    NoticeSource::new(row.get(0), row.get(1), rule, &describes).alert(task_id, &alarm, AlarmEvent::Cleared)
}

/// The time after which a rule takes a series for silent. [`None`] if the rule judges values.
fn silent_for(rule: &Rule) -> Option<Duration> {
    match rule.condition {
        Condition::Silent { duration } => Some(duration),
        _ => None,
    }
}
