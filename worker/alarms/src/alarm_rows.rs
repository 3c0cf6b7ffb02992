//! The table of alarms.

use std::collections::BTreeMap;

use deadpool_postgres::Transaction;
use garenne_database::{Parameters, QueryResult, Tables, column};

use crate::{
    alarm::{Alarm, AlarmSpan},
    micros::{micros, timestamp},
};

pub(super) struct AlarmStatements {
    load: String,
    store: String,
}

/// A span of the alarms of a rule and a device's metric.
pub(super) struct RuleSpan<'a> {
    pub(super) device: &'a str,
    pub(super) metric: &'a str,
    pub(super) rule: &'a str,
    pub(super) span: AlarmSpan,
}

/// An alarm as it is to be stored.
pub(super) struct AlarmRow<'a> {
    pub(super) device: &'a str,
    pub(super) metric: &'a str,
    pub(super) rule: &'a str,
    pub(super) severity: &'static str,
    pub(super) alarm: Alarm,
    pub(super) is_withdrawn: bool,
}

impl AlarmStatements {
    pub(super) fn new(tables: &Tables) -> Self {
        let alarms = format!(
            "SELECT a.id, a.since, a.upto, a.ended, a.value FROM {tables}_alarms AS a
             WHERE a.device = k.device AND a.metric = k.metric AND a.rule = k.rule AND a.withdrawn_at IS NULL"
        );
        let load = format!(
            "SELECT k.place, p.* FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[],
                                             $6::bool[])
                  WITH ORDINALITY AS k(device, metric, rule, first, last, and_previous, place)
             CROSS JOIN LATERAL (
                 ({alarms} AND a.since >= k.first AND a.since <= k.last) UNION ALL
                 ({alarms} AND a.since < k.first AND k.and_previous ORDER BY a.since DESC LIMIT 1)
             ) AS p"
        );
        let store = format!(
            "INSERT INTO {tables}_alarms AS a
                 (id, device, metric, rule, since, upto, ended, value, withdrawn_at, severity, notified_at)
             SELECT id, device, metric, rule, since, upto, ended, value, CASE WHEN is_withdrawn THEN now() END, severity, null
             FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::timestamptz[],
                         $7::timestamptz[], $8::float8[], $9::bool[], $10::text[])
                  AS input(id, device, metric, rule, since, upto, ended, value, is_withdrawn, severity)
             ON CONFLICT (id) DO UPDATE SET since = excluded.since, upto = excluded.upto, ended = excluded.ended,
                 value = excluded.value, withdrawn_at = excluded.withdrawn_at, severity = excluded.severity,
                 closed_reason = CASE WHEN a.ended = excluded.ended THEN a.closed_reason END,
                 closed_at = CASE WHEN a.ended = excluded.ended THEN a.closed_at END"
        );
        Self { load, store }
    }

    /// The alarms of each span.
    pub(super) async fn load(
        &self,
        transaction: &Transaction<'_>,
        spans: &[RuleSpan<'_>],
    ) -> QueryResult<Vec<Vec<Alarm>>> {
        let mut alarms = vec![Vec::new(); spans.len()];
        if spans.is_empty() {
            return Ok(alarms);
        }
        let statement = transaction.prepare_cached(&self.load).await?;
        let parameters: Parameters<'_, 6> = [
            &column(spans, |span| span.device),
            &column(spans, |span| span.metric),
            &column(spans, |span| span.rule),
            &column(spans, |span| timestamp(span.span.from)),
            &column(spans, |span| timestamp(span.span.to)),
            &column(spans, |span| span.span.and_previous),
        ];
        for row in transaction.query(&statement, &parameters).await? {
            let place: i64 = row.get(0);
            let (since, upto) = (micros(row.get(2)), micros(row.get(3)));
            let alarm = Alarm {
                id: row.get(1),
                since,
                upto,
                ended: row.get::<_, Option<_>>(4).map(micros),
                value: row.get(5),
            };
            alarms[usize::try_from(place - 1).expect("a place in the parameters")].push(alarm);
        }
        Ok(alarms)
    }

    /// Inserts new alarms and updates known ones, by their ids.
    pub(super) async fn store(
        &self,
        transaction: &Transaction<'_>,
        rows: BTreeMap<String, AlarmRow<'_>>,
    ) -> QueryResult<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = rows.into_values().collect();
        let statement = transaction.prepare_cached(&self.store).await?;
        let parameters: Parameters<'_, 10> = [
            &column(&rows, |row| row.alarm.id.as_str()),
            &column(&rows, |row| row.device),
            &column(&rows, |row| row.metric),
            &column(&rows, |row| row.rule),
            &column(&rows, |row| timestamp(row.alarm.since)),
            &column(&rows, |row| timestamp(row.alarm.upto)),
            &column(&rows, |row| row.alarm.ended.map(timestamp)),
            &column(&rows, |row| row.alarm.value),
            &column(&rows, |row| row.is_withdrawn),
            &column(&rows, |row| row.severity),
        ];
        transaction.execute(&statement, &parameters).await.map(drop)
    }
}
