//! Rules judged where readings are stored, in the same commit.
//!
//! Any worker may get any reading, so what a rule remembers cannot be a worker's: it is the stored
//! readings themselves and a row for each alarm. Whoever stores readings of a device's metric holds a lock
//! on it until the commit, judges them together with those around them, and writes down what is to be
//! told, under the task that brought the news. A task that is delivered again finds it there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use deadpool_postgres::Transaction;
use garenne_protocol::{
    sensor::Unit,
    task::{Kind, TaskId},
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio_postgres::types::Json;
use uuid::Uuid;

use super::{
    Finished, Tables,
    notice::{Notice, alarm_id, named, notice},
};
use crate::{
    alarm::{
        Micros, Rules,
        judge::MOST_LOOKED_BACK,
        reconcile::{Alarm, reconcile},
        rules::{Condition, Rule},
    },
    builtin::reading::watch,
};
use garenne::{handler::ReadingRow, sink::Start};

/// Readings around those that are new, whatever the rules.
const NEIGHBOURS: usize = 64;
/// Readings between the earliest and the latest new one that are judged; a task brings no more.
const MOST_BETWEEN: usize = 20_000;
/// Locks are few and shared: a transaction with one for each device would exhaust the server's.
const STRIPES: u64 = 256;
/// Quality flags with which a value says nothing.
const UNUSABLE: [&str; 3] = ["out-of-range", "impossible", "not-calibrated"];

/// Judges what is stored.
pub(super) struct Alarms {
    pub(super) rules: Arc<Rules>,
    pub(super) tables: Tables,
}

/// The new readings of a device's metric in one batch.
pub(super) struct Touched<'a> {
    device: &'a str,
    metric: &'a str,
    first: OffsetDateTime,
    last: OffsetDateTime,
    /// The task under which news of it are written down.
    owner: &'a str,
}

impl<'a> Touched<'a> {
    /// Device and metric.
    pub(super) fn key(&self) -> (&'a str, &'a str) {
        (self.device, self.metric)
    }
}

impl Alarms {
    /// What of a batch rules look at, in an order that is the same for everybody.
    pub(super) fn touched<'a>(&self, batch: impl IntoIterator<Item = &'a Finished>) -> Vec<Touched<'a>> {
        let mut touched: BTreeMap<(&str, &str), Touched<'_>> = BTreeMap::new();
        for finished in batch {
            for ReadingRow { device, metric, time, quality, .. } in &finished.output.rows {
                if quality.iter().any(|flag| UNUSABLE.contains(flag))
                    || self.rules.of(device, metric).next().is_none()
                {
                    continue;
                }
                let owner = finished.envelope.id.as_str();
                let known = touched.entry((device, metric)).or_insert_with(|| Touched {
                    device,
                    metric,
                    first: *time,
                    last: *time,
                    owner,
                });
                known.first = known.first.min(*time);
                known.last = known.last.max(*time);
                known.owner = owner;
            }
        }
        touched.into_values().collect()
    }

    /// Keeps everybody else from judging these until the transaction ends. To be called before anything is
    /// stored in it: whoever waits for a row and holds a lock would wait for one who waits for the lock.
    pub(super) async fn lock(
        &self,
        transaction: &Transaction<'_>,
        touched: impl IntoIterator<Item = (&str, &str)>,
    ) -> Result<(), tokio_postgres::Error> {
        let stripe =
            |(device, metric)| i64::try_from(fingerprint(&[device, metric]) % STRIPES).unwrap_or_default();
        let mut stripes: Vec<i64> = touched.into_iter().map(stripe).collect();
        stripes.sort_unstable();
        stripes.dedup();
        // The first number tells this fleet's locks from others' in the database.
        let space = (fingerprint(&[&self.tables.readings]) >> 33) as i32;
        let statement = transaction
            .prepare_cached(
                "SELECT pg_advisory_xact_lock($1::int4, stripe::int4) FROM unnest($2::int8[]) AS stripe",
            )
            .await?;
        transaction.execute(&statement, &[&space, &stripes]).await.map(drop)
    }

    /// Judges what the transaction has stored of these tasks, and answers what is to be started for them.
    pub(super) async fn judged(
        &self,
        transaction: &Transaction<'_>,
        stored: &[&Finished],
    ) -> Result<HashMap<String, Vec<Start>>, tokio_postgres::Error> {
        let touched = self.touched(stored.iter().copied());
        if !touched.is_empty() {
            self.judge(transaction, &touched).await?;
        }
        let tasks: Vec<_> = stored.iter().map(|finished| finished.envelope.id.as_str()).collect();
        self.starts(transaction, &tasks).await
    }

    /// Brings the alarms up to date.
    async fn judge(
        &self,
        transaction: &Transaction<'_>,
        touched: &[Touched<'_>],
    ) -> Result<(), tokio_postgres::Error> {
        let windows = self.windows(transaction, touched).await?;
        let mut known = self.known(transaction, touched, &windows).await?;
        let (mut changed, mut notices, mut watches) = (Vec::new(), Vec::new(), Vec::new());
        for (place, (of, stored)) in touched.iter().zip(&windows).enumerate() {
            for rule in self.rules.of(of.device, of.metric) {
                let points = rule.points(stored);
                let before = known.remove(&(place, rule.name.clone())).unwrap_or_default();
                let mut alarms = before.clone();
                let id = |since: Micros| alarm_id(of.device, of.metric, &rule.name, since);
                for (at, news) in reconcile(rule, &points, micros(of.first), &mut alarms, id) {
                    notices.push(notice(of.device, of.metric, of.owner, rule, &alarms[at], news));
                }
                let is_new = |(at, alarm): &(usize, Alarm)| before.get(*at) != Some(alarm);
                changed.extend(
                    alarms.into_iter().enumerate().filter(is_new).map(|(_, alarm)| (of, rule, alarm)),
                );
                if let Condition::Silent { .. } = rule.condition {
                    watches.push((of, rule));
                }
            }
        }
        let rows: Vec<_> =
            changed.iter().map(|(of, rule, alarm)| (of.device, of.metric, rule, alarm)).collect();
        self.store(transaction, &rows).await?;
        notices.extend(self.watch(transaction, &watches).await?);
        self.write_down(transaction, &notices).await
    }

    /// The readings around the new ones, by place in `touched`, ordered by time.
    async fn windows(
        &self,
        transaction: &Transaction<'_>,
        touched: &[Touched<'_>],
    ) -> Result<Vec<Vec<(Micros, f64, Option<Unit>)>>, tokio_postgres::Error> {
        let readings = &self.tables.readings;
        let of = format!(
            "SELECT time, value, unit FROM {readings} AS r
             WHERE r.device = k.device AND r.metric = k.metric AND NOT r.quality && $7::text[]"
        );
        let query = format!(
            "SELECT k.place, p.time, p.value, p.unit
             FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::int4[])
                  AS k(device, metric, since, first, last, place)
             CROSS JOIN LATERAL (
                 ({of} AND time >= k.since AND time < k.first ORDER BY time DESC LIMIT {MOST_LOOKED_BACK}) UNION
                 ({of} AND time < k.first ORDER BY time DESC LIMIT {NEIGHBOURS}) UNION
                 ({of} AND time >= k.first AND time <= k.last ORDER BY time LIMIT {MOST_BETWEEN}) UNION
                 ({of} AND time > k.last ORDER BY time LIMIT {NEIGHBOURS})
             ) AS p
             ORDER BY k.place, p.time"
        );
        let since = |of: &Touched<'_>| {
            let back = self.rules.of(of.device, of.metric).map(|rule| rule.condition.lookback()).max();
            of.first - time::Duration::microseconds(back.unwrap_or_default())
        };
        let places: Vec<i32> = (0..).take(touched.len()).collect();
        let column = |pick: fn(&Touched<'_>) -> OffsetDateTime| touched.iter().map(pick).collect::<Vec<_>>();
        let (devices, metrics) = names(touched);
        let since: Vec<_> = touched.iter().map(since).collect();
        let (first, last) = (column(|of| of.first), column(|of| of.last));
        let statement = transaction.prepare_cached(&query).await?;
        let rows = transaction
            .query(&statement, &[&devices, &metrics, &since, &first, &last, &places, &UNUSABLE.as_slice()])
            .await?;
        let mut windows = vec![Vec::new(); touched.len()];
        for row in rows {
            let unit = row.get::<_, Option<&str>>(3).and_then(|symbol| Unit::parse(symbol).ok());
            let place = usize::try_from(row.get::<_, i32>(0)).expect("a place");
            windows[place].push((micros(row.get(1)), row.get(2), unit));
        }
        Ok(windows)
    }

    /// The alarms that are open or reach into the windows, by place and rule.
    async fn known(
        &self,
        transaction: &Transaction<'_>,
        touched: &[Touched<'_>],
        windows: &[Vec<(Micros, f64, Option<Unit>)>],
    ) -> Result<HashMap<(usize, String), Vec<Alarm>>, tokio_postgres::Error> {
        let query = format!(
            "SELECT k.place, a.id, a.rule, a.since, a.upto, a.ended, a.value
             FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::int4[]) AS k(device, metric, first, place)
             JOIN {} AS a USING (device, metric)
             WHERE a.ended IS NULL OR a.ended >= k.first
             ORDER BY a.since",
            self.tables.alarms
        );
        let (devices, metrics) = names(touched);
        let places: Vec<i32> = (0..).take(touched.len()).collect();
        let begins: Vec<_> = windows
            .iter()
            .zip(touched)
            .map(|(window, of)| window.first().map_or(of.first, |first| instant(first.0)))
            .collect();
        let statement = transaction.prepare_cached(&query).await?;
        let mut known: HashMap<_, Vec<_>> = HashMap::new();
        for row in transaction.query(&statement, &[&devices, &metrics, &begins, &places]).await? {
            let place = usize::try_from(row.get::<_, i32>(0)).expect("a place");
            let ended = row.get::<_, Option<OffsetDateTime>>(5).map(micros);
            let (since, upto) = (micros(row.get(3)), micros(row.get(4)));
            let alarm = Alarm { id: row.get(1), since, upto, ended, value: row.get(6) };
            known.entry((place, row.get(2))).or_default().push(alarm);
        }
        Ok(known)
    }

    pub(super) async fn store(
        &self,
        transaction: &Transaction<'_>,
        rows: &[(&str, &str, &&Rule, &Alarm)],
    ) -> Result<(), tokio_postgres::Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let upsert = format!(
            "INSERT INTO {} (id, device, metric, rule, since, upto, ended, value)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[],
                                  $6::timestamptz[], $7::timestamptz[], $8::float8[])
             ON CONFLICT (id) DO UPDATE SET since = excluded.since, upto = excluded.upto, ended = excluded.ended",
            self.tables.alarms
        );
        let statement = transaction.prepare_cached(&upsert).await?;
        let text =
            |pick: fn(&(&str, &str, &&Rule, &Alarm)) -> String| rows.iter().map(pick).collect::<Vec<_>>();
        let since: Vec<_> = rows.iter().map(|row| instant(row.3.since)).collect();
        let upto: Vec<_> = rows.iter().map(|row| instant(row.3.upto)).collect();
        let ended: Vec<_> = rows.iter().map(|row| row.3.ended.map(instant)).collect();
        let value: Vec<_> = rows.iter().map(|row| row.3.value).collect();
        let (id, device) = (text(|row| row.3.id.clone()), text(|row| row.0.to_owned()));
        let (metric, rule) = (text(|row| row.1.to_owned()), text(|row| row.2.name.clone()));
        let columns: [&(dyn tokio_postgres::types::ToSql + Sync); 8] =
            [&id, &device, &metric, &rule, &since, &upto, &ended, &value];
        transaction.execute(&statement, &columns).await.map(drop)
    }

    /// Sees to it that silence is noticed: one `reading.watch` a device, metric and rule.
    async fn watch(
        &self,
        transaction: &Transaction<'_>,
        watches: &[(&Touched<'_>, &Rule)],
    ) -> Result<Vec<Notice>, tokio_postgres::Error> {
        if watches.is_empty() {
            return Ok(Vec::new());
        }
        let insert = format!(
            "INSERT INTO {} (device, metric, rule, watch_id)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
             ON CONFLICT DO NOTHING RETURNING watch_id",
            self.tables.watches
        );
        let id = |(of, rule): &(&Touched<'_>, &Rule)| {
            named(&["watch", of.device, of.metric, &rule.name, of.owner])
        };
        let ids: Vec<_> = watches.iter().map(id).collect();
        let devices: Vec<_> = watches.iter().map(|(of, _)| of.device).collect();
        let metrics: Vec<_> = watches.iter().map(|(of, _)| of.metric).collect();
        let rules: Vec<_> = watches.iter().map(|(_, rule)| rule.name.as_str()).collect();
        let statement = transaction.prepare_cached(&insert).await?;
        let begun = transaction.query(&statement, &[&devices, &metrics, &rules, &ids]).await?;
        let begun: Vec<String> = begun.iter().map(|row| row.get(0)).collect();
        let notices =
            ids.into_iter().zip(watches).filter(|(id, _)| begun.contains(id)).map(|(id, (of, rule))| {
                Notice {
                    id,
                    owner: of.owner.to_owned(),
                    kind: watch::KIND,
                    payload: json!({ "device": of.device, "metric": of.metric, "rule": rule.name }),
                }
            });
        Ok(notices.collect())
    }

    pub(super) async fn write_down(
        &self,
        transaction: &Transaction<'_>,
        notices: &[Notice],
    ) -> Result<(), tokio_postgres::Error> {
        if notices.is_empty() {
            return Ok(());
        }
        let insert = format!(
            "INSERT INTO {} (id, task_id, kind, payload)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::jsonb[]) ON CONFLICT DO NOTHING",
            self.tables.notices
        );
        let statement = transaction.prepare_cached(&insert).await?;
        let text = |pick: fn(&Notice) -> &str| notices.iter().map(pick).collect::<Vec<_>>();
        let payloads: Vec<_> = notices.iter().map(|notice| Json(&notice.payload)).collect();
        let (ids, owners, kinds) = (text(|n| &n.id), text(|n| &n.owner), text(|n| n.kind));
        transaction.execute(&statement, &[&ids, &owners, &kinds, &payloads]).await.map(drop)
    }

    /// What was written down under these tasks, now or when they ran before.
    pub(super) async fn starts(
        &self,
        transaction: &Transaction<'_>,
        tasks: &[&str],
    ) -> Result<HashMap<String, Vec<Start>>, tokio_postgres::Error> {
        let query = format!(
            "SELECT task_id, id, kind, payload FROM {} WHERE task_id = ANY($1) ORDER BY at, id",
            self.tables.notices
        );
        let statement = transaction.prepare_cached(&query).await?;
        let mut starts: HashMap<String, Vec<Start>> = HashMap::new();
        for row in transaction.query(&statement, &[&tasks]).await? {
            let (Ok(id), Ok(kind)) = (TaskId::parse(row.get(1)), Kind::parse(row.get(2))) else { continue };
            let Json(payload): Json<Value> = row.get(3);
            let start = Start { id, kind, body: payload.to_string().into_bytes() };
            starts.entry(row.get(0)).or_default().push(start);
        }
        Ok(starts)
    }
}

fn names<'a>(touched: &[Touched<'a>]) -> (Vec<&'a str>, Vec<&'a str>) {
    touched.iter().map(|of| (of.device, of.metric)).unzip()
}

fn fingerprint(parts: &[&str]) -> u64 {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, parts.join("\u{1f}").as_bytes()).as_u64_pair().0
}

fn micros(time: OffsetDateTime) -> Micros {
    i64::try_from(time.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

pub(super) fn instant(at: Micros) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at) * 1000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
