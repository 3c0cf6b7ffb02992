//! Evaluates alarm rules in the transaction that stores readings.
//!
//! Any worker may receive any reading, so the state of a rule cannot live in a worker. It is the stored readings
//! and one row per alarm. A worker that stores readings of a device's metric locks it until the commit,
//! evaluates the new readings together with those around them, and stores the resulting alerts in the
//! [`outbox`] under the task that brought the readings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use deadpool_postgres::Transaction;
use garenne_protocol::sensor::Unit;
use time::OffsetDateTime;

use crate::{
    columns::{Parameters, column},
    error::QueryResult,
    notice::{Notice, alarm_id, alert_notice, uuid, watch_notice},
    outbox,
    tables::Tables,
};
use garenne::{
    handler::ReadingRow,
    sink::{FinishedTask, FollowUp},
};
use garenne_sensors::alarm::{
    Alarm, Condition, MAX_LOOKBACK_READINGS, Micros, Rule, Rules, Sample, reconcile,
};
use garenne_sensors::reading::Flag;

/// Readings before and after the new ones that are evaluated for every rule.
const MIN_CONTEXT_READINGS: usize = 64;
/// Readings between the earliest and the latest new one that are evaluated, at most. A task brings no more.
const MAX_NEW_SPAN_READINGS: usize = 20_000;
/// Advisory locks of a fleet. Devices share them: one lock per device would exhaust the server's lock table.
const LOCK_STRIPES: u64 = 256;
/// Quality flags that exclude a reading from evaluation.
const UNUSABLE: [Flag; 3] = [Flag::OutOfRange, Flag::Impossible, Flag::NotCalibrated];

/// Evaluates rules on stored readings.
pub(super) struct AlarmEvaluator {
    pub(super) rules: Arc<Rules>,
    pub(super) tables: Tables,
}

/// The new readings of a device's metric in a batch.
pub(super) struct ChangedSeries<'a> {
    pub(super) device: &'a str,
    pub(super) metric: &'a str,
    /// The time of the earliest new reading.
    first: OffsetDateTime,
    /// The time of the latest new reading.
    last: OffsetDateTime,
    /// The task under which follow-ups are stored: the last one in the batch with a reading of this series.
    task_id: &'a str,
}

/// A row of the table of alarms.
pub(super) struct AlarmRow<'a> {
    pub(super) device: &'a str,
    pub(super) metric: &'a str,
    pub(super) rule: &'a str,
    pub(super) alarm: Alarm,
}

impl AlarmEvaluator {
    /// The series in a batch that rules apply to, ordered by device and metric.
    pub(super) fn changed_series<'a>(
        &self,
        batch: impl IntoIterator<Item = &'a FinishedTask>,
    ) -> Vec<ChangedSeries<'a>> {
        let unusable = UNUSABLE.map(<&str>::from);
        let mut changed: BTreeMap<(&str, &str), ChangedSeries<'_>> = BTreeMap::new();
        for finished in batch {
            for ReadingRow { device, metric, time, quality, .. } in &finished.output.rows {
                if quality.iter().any(|flag| unusable.contains(flag))
                    || self.rules.matching(device, metric).next().is_none()
                {
                    continue;
                }
                let task_id = finished.envelope.id.as_str();
                let new = ChangedSeries { device, metric, first: *time, last: *time, task_id };
                let series = changed.entry((device, metric)).or_insert(new);
                series.first = series.first.min(*time);
                series.last = series.last.max(*time);
                series.task_id = task_id;
            }
        }
        changed.into_values().collect()
    }

    /// Locks series, given as device and metric, until the transaction ends. Must precede every write of the
    /// transaction: two transactions that each wait for a row and a lock of the other would deadlock.
    pub(super) async fn lock(
        &self,
        transaction: &Transaction<'_>,
        series: impl IntoIterator<Item = (&str, &str)>,
    ) -> QueryResult<()> {
        let stripe = |(device, metric)| (hash(&[device, metric]) % LOCK_STRIPES) as i64;
        let stripes: BTreeSet<i64> = series.into_iter().map(stripe).collect();
        let stripes: Vec<_> = stripes.into_iter().collect();
        // The first key separates this fleet's locks from others in the database.
        let fleet_key = (hash(&[&format!("{}_readings", self.tables)]) >> 33) as i32;
        let statement = transaction
            .prepare_cached(
                "SELECT pg_advisory_xact_lock($1::int4, stripe::int4) FROM unnest($2::int8[]) AS stripe",
            )
            .await?;
        transaction.execute(&statement, &[&fleet_key, &stripes]).await.map(drop)
    }

    /// Evaluates the readings of stored results. Returns the follow-up tasks by the id of the task that starts
    /// them.
    pub(super) async fn evaluate_batch(
        &self,
        transaction: &Transaction<'_>,
        stored: &[&FinishedTask],
    ) -> QueryResult<HashMap<String, Vec<FollowUp>>> {
        let changed = self.changed_series(stored.iter().copied());
        if !changed.is_empty() {
            self.evaluate(transaction, &changed).await?;
        }
        let task_ids: Vec<_> = stored.iter().map(|finished| finished.envelope.id.as_str()).collect();
        outbox::load(transaction, &self.tables, &task_ids).await
    }

    /// Updates the alarms of changed series and stores the follow-ups.
    async fn evaluate(
        &self,
        transaction: &Transaction<'_>,
        changed: &[ChangedSeries<'_>],
    ) -> QueryResult<()> {
        let windows = self.load_windows(transaction, changed).await?;
        let mut known = self.load_alarms(transaction, changed, &windows).await?;
        let (mut rows, mut notices, mut watches) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (series, samples)) in changed.iter().zip(&windows).enumerate() {
            let ChangedSeries { device, metric, first, task_id, .. } = *series;
            for rule in self.rules.matching(device, metric) {
                let points = rule.convert(samples);
                let before = known.remove(&(index, rule.name.clone())).unwrap_or_default();
                let mut alarms = before.clone();
                let id = |since: Micros| alarm_id(device, metric, &rule.name, since);
                for (at, event) in reconcile(rule, &points, micros(first), &mut alarms, id) {
                    notices.push(alert_notice(device, metric, task_id, rule, &alarms[at], event));
                }
                let is_changed = |(at, alarm): &(usize, Alarm)| before.get(*at) != Some(alarm);
                let row = |(_, alarm)| AlarmRow { device, metric, rule: &rule.name, alarm };
                rows.extend(alarms.into_iter().enumerate().filter(is_changed).map(row));
                if let Condition::Silent { .. } = rule.condition {
                    watches.push((series, rule));
                }
            }
        }
        self.store_alarms(transaction, &rows).await?;
        notices.extend(self.start_watches(transaction, &watches).await?);
        outbox::store(transaction, &self.tables, &notices).await
    }

    /// The new readings of each changed series and the readings around them, ordered by time.
    async fn load_windows(
        &self,
        transaction: &Transaction<'_>,
        changed: &[ChangedSeries<'_>],
    ) -> QueryResult<Vec<Vec<Sample>>> {
        let tables = &self.tables;
        let series = format!(
            "SELECT time, value, unit FROM {tables}_readings AS r
             WHERE r.device = k.device AND r.metric = k.metric AND NOT r.quality && $6::text[]"
        );
        let query = format!(
            "SELECT k.place, p.time, p.value, p.unit
             FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[])
                  WITH ORDINALITY AS k(device, metric, since, first, last, place)
             CROSS JOIN LATERAL (
                 ({series} AND time >= k.since AND time < k.first ORDER BY time DESC LIMIT {MAX_LOOKBACK_READINGS}) UNION
                 ({series} AND time < k.first ORDER BY time DESC LIMIT {MIN_CONTEXT_READINGS}) UNION
                 ({series} AND time >= k.first AND time <= k.last ORDER BY time LIMIT {MAX_NEW_SPAN_READINGS}) UNION
                 ({series} AND time > k.last ORDER BY time LIMIT {MIN_CONTEXT_READINGS})
             ) AS p
             ORDER BY k.place, p.time"
        );
        let since = |series: &ChangedSeries<'_>| {
            let rules = self.rules.matching(series.device, series.metric);
            let lookback = rules.map(|rule| rule.condition.lookback()).max();
            series.first - time::Duration::microseconds(lookback.unwrap_or_default())
        };
        let statement = transaction.prepare_cached(&query).await?;
        let unusable = UNUSABLE.map(<&str>::from);
        let parameters: Parameters<'_, 6> = [
            &column(changed, |series| series.device),
            &column(changed, |series| series.metric),
            &column(changed, since),
            &column(changed, |series| series.first),
            &column(changed, |series| series.last),
            &unusable.as_slice(),
        ];
        let mut windows = vec![Vec::new(); changed.len()];
        for row in transaction.query(&statement, &parameters).await? {
            let unit = row.get::<_, Option<&str>>(3).and_then(|symbol| Unit::parse(symbol).ok());
            let sample = Sample { at: micros(row.get(1)), value: row.get(2), unit };
            windows[index(row.get(0))].push(sample);
        }
        Ok(windows)
    }

    /// The alarms that are open or overlap the windows, by index of the series and name of the rule.
    async fn load_alarms(
        &self,
        transaction: &Transaction<'_>,
        changed: &[ChangedSeries<'_>],
        windows: &[Vec<Sample>],
    ) -> QueryResult<HashMap<(usize, String), Vec<Alarm>>> {
        let query = format!(
            "SELECT k.place, a.id, a.rule, a.since, a.upto, a.ended, a.value
             FROM unnest($1::text[], $2::text[], $3::timestamptz[]) WITH ORDINALITY AS k(device, metric, first, place)
             JOIN {}_alarms AS a USING (device, metric)
             WHERE a.ended IS NULL OR a.ended >= k.first
             ORDER BY a.since",
            self.tables
        );
        let begins: Vec<_> = windows
            .iter()
            .zip(changed)
            .map(|(window, series)| window.first().map_or(series.first, |sample| date_time(sample.at)))
            .collect();
        let devices = column(changed, |series| series.device);
        let metrics = column(changed, |series| series.metric);
        let statement = transaction.prepare_cached(&query).await?;
        let parameters: Parameters<'_, 3> = [&devices, &metrics, &begins];
        let mut known: HashMap<_, Vec<_>> = HashMap::new();
        for row in transaction.query(&statement, &parameters).await? {
            let ended = row.get::<_, Option<OffsetDateTime>>(5).map(micros);
            let (since, upto) = (micros(row.get(3)), micros(row.get(4)));
            let alarm = Alarm { id: row.get(1), since, upto, ended, value: row.get(6) };
            known.entry((index(row.get(0)), row.get(2))).or_default().push(alarm);
        }
        Ok(known)
    }

    /// Inserts new alarms and updates known ones.
    pub(super) async fn store_alarms(
        &self,
        transaction: &Transaction<'_>,
        rows: &[AlarmRow<'_>],
    ) -> QueryResult<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let upsert = format!(
            "INSERT INTO {}_alarms (id, device, metric, rule, since, upto, ended, value)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[],
                                  $6::timestamptz[], $7::timestamptz[], $8::float8[])
             ON CONFLICT (id) DO UPDATE SET since = excluded.since, upto = excluded.upto, ended = excluded.ended",
            self.tables
        );
        let statement = transaction.prepare_cached(&upsert).await?;
        let parameters: Parameters<'_, 8> = [
            &column(rows, |row| row.alarm.id.as_str()),
            &column(rows, |row| row.device),
            &column(rows, |row| row.metric),
            &column(rows, |row| row.rule),
            &column(rows, |row| date_time(row.alarm.since)),
            &column(rows, |row| date_time(row.alarm.upto)),
            &column(rows, |row| row.alarm.ended.map(date_time)),
            &column(rows, |row| row.alarm.value),
        ];
        transaction.execute(&statement, &parameters).await.map(drop)
    }

    /// Returns a `reading.watch` task for each series and rule that has none.
    async fn start_watches(
        &self,
        transaction: &Transaction<'_>,
        watches: &[(&ChangedSeries<'_>, &Rule)],
    ) -> QueryResult<Vec<Notice>> {
        if watches.is_empty() {
            return Ok(Vec::new());
        }
        let insert = format!(
            "INSERT INTO {}_watches (device, metric, rule, watch_id)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
             ON CONFLICT DO NOTHING RETURNING watch_id",
            self.tables
        );
        let notice = |(series, rule): &(&ChangedSeries<'_>, &Rule)| {
            watch_notice(series.device, series.metric, series.task_id, rule)
        };
        let mut notices = column(watches, notice);
        let ids = column(&notices, |notice| notice.id.as_str());
        let devices = column(watches, |(series, _)| series.device);
        let metrics = column(watches, |(series, _)| series.metric);
        let rules = column(watches, |(_, rule)| rule.name.as_str());
        let statement = transaction.prepare_cached(&insert).await?;
        let inserted = transaction.query(&statement, &[&devices, &metrics, &rules, &ids]).await?;
        let inserted: Vec<String> = inserted.iter().map(|row| row.get(0)).collect();
        notices.retain(|notice| inserted.contains(&notice.id));
        Ok(notices)
    }
}

/// The index of a series, from its ordinality in the parameters of a query, which counts from 1.
fn index(ordinality: i64) -> usize {
    usize::try_from(ordinality - 1).expect("a position in the parameters")
}

fn hash(parts: &[&str]) -> u64 {
    uuid(parts).as_u64_pair().0
}

pub(super) fn micros(time: OffsetDateTime) -> Micros {
    i64::try_from(time.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

fn date_time(at: Micros) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at) * 1000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
