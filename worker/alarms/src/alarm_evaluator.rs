//! Evaluates alarm rules in the transaction that stores readings.
//!
//! Any worker may receive any reading, so the state of a rule cannot live in a worker. It is the stored readings
//! and one row per alarm. A worker that stores readings of a device's metric locks it until the commit, judges
//! what the changed readings concern ([`SeriesJudge`]), and stores the alarms that this changes. Then they are those of
//! judging all stored readings in order of time.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use deadpool_postgres::Transaction;
use garenne_database::{QueryResult, Tables};
use garenne_protocol::sensor::Unit;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    alarm::{self, AlarmChange, Condition, Micros, PageSizes, Rule, Rules, SeriesJudge},
    alarm_rows::{AlarmRow, AlarmStatements, RuleSpan},
    changed_reading::ChangedReading,
    micros::micros,
    notice::{Notice, NoticeSource},
    pending_rules::{PendingRules, SeriesPending},
    series_counter::{self, SeriesCounter},
    series_locks,
    usable_readings::{SeriesSpan, SpanStatements, is_usable},
};
use garenne::sink::FinishedTask;
use garenne_sensors::reading_row::ReadingRows;

/// Readings that are loaded at once for all series, unless those of one series are more.
const MAX_LOADED_READINGS: usize = 131_072;

/// What changed readings change.
pub struct Judged<'a> {
    /// The state of rules after the newest reading, by device and metric, of series with such rules. The table of series has it.
    pub pending: HashMap<(&'a str, &'a str), SeriesPending>,
    /// The notices of the alarms that were raised or cleared.
    pub(super) notices: Vec<Notice>,
}

/// Evaluates rules on stored readings.
pub(super) struct AlarmEvaluator {
    rules: Arc<Rules>,
    tables: Tables,
    readings: SpanStatements,
    alarms: AlarmStatements,
    pending: PendingRules,
}

/// A device's metric with changed readings.
struct ChangedSeries<'a> {
    device: &'a str,
    metric: &'a str,
    rules: Vec<&'a Rule>,
    /// The last task of the batch with a changed reading of the series: the cause of its notices. [`None`] if readings
    /// were changed in the database.
    task_id: Option<&'a str>,
    /// When a reading of the series was stored last, before these.
    stored_at: Option<OffsetDateTime>,
    judge: SeriesJudge<'a>,
}

/// The changed readings of a series in a batch, the last task with one, and the counter that it declares.
#[derive(Default)]
struct Changes<'a> {
    task_id: &'a str,
    counter: Option<SeriesCounter>,
    readings: Vec<alarm::ChangedReading>,
}

impl AlarmEvaluator {
    pub(super) fn new(rules: Arc<Rules>, tables: &Tables) -> Self {
        Self {
            tables: tables.clone(),
            readings: SpanStatements::new(tables),
            alarms: AlarmStatements::new(tables),
            pending: PendingRules::new(tables, &rules),
            rules,
        }
    }

    /// Locks the series of a batch that are judged, until the transaction ends. Must precede every write of the
    /// transaction.
    pub(super) async fn lock(
        &self,
        transaction: &Transaction<'_>,
        batch: &[FinishedTask],
    ) -> QueryResult<()> {
        let rows = batch.iter().flat_map(|finished| finished.output.rows());
        let series: BTreeSet<_> = rows
            .map(|row| (&*row.device, &*row.metric))
            .filter(|(device, metric)| self.rules(device, metric).next().is_some())
            .collect();
        series_locks::lock(transaction, &self.tables, &series).await
    }

    /// Judges changed readings and updates the alarms. `task_id` names the task of a reading.
    pub(super) async fn evaluate<'a>(
        &'a self,
        transaction: &Transaction<'_>,
        changed: &[ChangedReading<'a>],
        task_id: impl Fn(&ChangedReading<'a>) -> &'a str,
    ) -> QueryResult<Judged<'a>> {
        let mut series = self.changed_series(transaction, changed, task_id).await?;
        let notices = self.evaluate_series(transaction, &mut series).await?;
        let pending = series
            .into_iter()
            .filter(|series| self.has_pending((series.device, series.metric)))
            .map(|series| {
                let ChangedSeries { device, metric, stored_at, ref rules, ref judge, .. } = series;
                let rules = self.pending.stored(judge.pending(), rules);
                ((device, metric), SeriesPending { stored_at, rules })
            });
        Ok(Judged { notices, pending: pending.collect() })
    }

    /// As [`evaluate`](Self::evaluate), for readings of a series that were changed in the database. Locks the series, so
    /// it must precede every write of the transaction to readings and alarms.
    pub(super) async fn evaluate_again(
        &self,
        transaction: &Transaction<'_>,
        device: &str,
        metric: &str,
        times: impl Iterator<Item = Micros>,
    ) -> QueryResult<Vec<Notice>> {
        series_locks::lock(transaction, &self.tables, &BTreeSet::from([(device, metric)])).await?;
        let changed = times.map(|at| alarm::ChangedReading { at, is_usable: true }).collect();
        let counters = series_counter::stored(transaction, &self.tables, &[(device, metric)], false).await?;
        let counter = counters.into_values().next();
        let series = self.series(device, metric, None, counter, changed, SeriesPending::default());
        let notices = self.evaluate_series(transaction, &mut [series]).await?;
        // Batches since the change may have been judged with the state before it.
        self.pending.clear(transaction, device, metric).await?;
        Ok(notices)
    }

    /// The rules that judge values.
    pub(super) fn judging_rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(judges_values)
    }

    async fn evaluate_series(
        &self,
        transaction: &Transaction<'_>,
        series: &mut [ChangedSeries<'_>],
    ) -> QueryResult<Vec<Notice>> {
        let mut notices = Vec::new();
        loop {
            let mut loaded = 0;
            let open = series.iter_mut().filter(|series| !series.judge.is_done());
            let first = open.take_while(|series| {
                let is_next = loaded < MAX_LOADED_READINGS;
                loaded += series.judge.spans().iter().map(|span| span.limit).sum::<usize>();
                is_next
            });
            let mut first: Vec<_> = first.collect();
            if first.is_empty() {
                return Ok(notices);
            }
            self.judge(transaction, &mut first, &mut notices).await?;
        }
    }

    /// Loads what the series ask for, judges it and stores the alarms that it changes.
    async fn judge(
        &self,
        transaction: &Transaction<'_>,
        series: &mut [&mut ChangedSeries<'_>],
        notices: &mut Vec<Notice>,
    ) -> QueryResult<()> {
        let spans: Vec<_> = series.iter().flat_map(|series| series.reading_spans()).collect();
        let mut readings = self.readings.load(transaction, &spans).await?.into_iter();
        for series in series.iter_mut() {
            let count = series.judge.spans().len();
            series.judge.add_readings(readings.by_ref().take(count).collect());
        }
        let spans: Vec<_> = series.iter().flat_map(|series| series.alarm_spans()).collect();
        let mut alarms = self.alarms.load(transaction, &spans).await?.into_iter();
        let mut rows = BTreeMap::new();
        for series in series.iter_mut() {
            let &mut ChangedSeries { device, metric, task_id, ref rules, ref mut judge, .. } = *series;
            let mut known = Vec::new();
            for _ in judge.alarm_spans() {
                for place in 0..rules.len() {
                    known.extend(alarms.next().unwrap_or_default().into_iter().map(|alarm| (place, alarm)));
                }
            }
            for change in judge.judge(known, || Uuid::now_v7().to_string()) {
                let AlarmChange { rule, alarm, is_withdrawn, event } = change;
                let rule = rules[rule];
                notices.extend(event.map(|event| {
                    let describes = rule.condition.describe();
                    let notice =
                        NoticeSource::new(device, metric, rule, &describes).alert(task_id, &alarm, event);
                    if is_withdrawn { notice.withdrawn() } else { notice }
                }));
                let severity = rule.severity.name();
                let row = AlarmRow { device, metric, rule: &rule.name, severity, alarm, is_withdrawn };
                rows.insert(row.alarm.id.clone(), row);
            }
        }
        self.alarms.store(transaction, rows).await
    }

    /// The series of changed readings that rules apply to, ordered by device and metric.
    async fn changed_series<'a>(
        &'a self,
        transaction: &Transaction<'_>,
        changed: &[ChangedReading<'a>],
        task_id: impl Fn(&ChangedReading<'a>) -> &'a str,
    ) -> QueryResult<Vec<ChangedSeries<'a>>> {
        let mut series: BTreeMap<(&str, &str), Changes<'a>> = BTreeMap::new();
        for reading in changed {
            let row = reading.row;
            let changes = series.entry((&*row.device, &*row.metric)).or_default();
            changes.task_id = task_id(reading);
            let counter = row.counter.map(|counter| (counter, row.unit.and_then(Unit::get)));
            changes.counter = counter.or(changes.counter);
            changes.readings.push(alarm::ChangedReading { at: micros(row.time), is_usable: is_usable(row) });
        }
        let with_state: Vec<_> = series.keys().copied().filter(|key| self.has_pending(*key)).collect();
        let mut pending = self.pending.load(transaction, &with_state).await?;
        let undeclared =
            series.iter().filter(|(key, changes)| changes.counter.is_none() && self.needs_counter(**key));
        let undeclared: Vec<_> = undeclared.map(|(key, _)| *key).collect();
        let mut declared = series_counter::stored(transaction, &self.tables, &undeclared, true).await?;
        let series = series.into_iter().map(|((device, metric), changes)| {
            let Changes { task_id, counter, readings } = changes;
            let key = (device.to_owned(), metric.to_owned());
            let pending = pending.remove(&key).unwrap_or_default();
            let counter = counter.or_else(|| declared.remove(&key));
            self.series(device, metric, Some(task_id), counter, readings, pending)
        });
        Ok(series.collect())
    }

    /// Whether a rule of the series has a state.
    fn has_pending(&self, (device, metric): (&str, &str)) -> bool {
        self.rules(device, metric).any(|rule| self.pending.has_state(rule))
    }

    /// Whether a rule judges the values of a counter otherwise than others.
    fn needs_counter(&self, (device, metric): (&str, &str)) -> bool {
        let judges_steps = |rule: &Rule| {
            matches!(rule.condition, Condition::RateOfChange { .. } | Condition::Consumption { .. })
        };
        self.rules(device, metric).any(judges_steps)
    }

    fn series<'a>(
        &'a self,
        device: &'a str,
        metric: &'a str,
        task_id: Option<&'a str>,
        counter: Option<SeriesCounter>,
        changed: Vec<alarm::ChangedReading>,
        SeriesPending { stored_at, rules: pending }: SeriesPending,
    ) -> ChangedSeries<'a> {
        let rules: Vec<_> = self.rules(device, metric).collect();
        let pending = self.pending.of_rules(&pending, &rules);
        let judge = SeriesJudge::new(rules.iter().copied(), counter, changed, pending, PageSizes::default());
        ChangedSeries { device, metric, rules, task_id, stored_at, judge }
    }

    /// The rules that judge the values of a device's metric.
    fn rules<'a>(&'a self, device: &'a str, metric: &'a str) -> impl Iterator<Item = &'a Rule> {
        self.rules.matching(device, metric).filter(judges_values)
    }
}

fn judges_values(rule: &&Rule) -> bool {
    !matches!(rule.condition, Condition::Silent { .. })
}

impl<'a> ChangedSeries<'a> {
    fn reading_spans(&self) -> impl Iterator<Item = SeriesSpan<'a>> + use<'a> {
        let (device, metric) = (self.device, self.metric);
        let is_counter =
            self.rules.iter().any(|rule| matches!(rule.condition, Condition::Consumption { .. }));
        self.judge.spans().into_iter().map(move |span| SeriesSpan { device, metric, span, is_counter })
    }

    /// For each span, one for each rule.
    fn alarm_spans(&self) -> impl Iterator<Item = RuleSpan<'a>> {
        self.judge.alarm_spans().iter().flat_map(|span| {
            let rule = |rule: &&'a Rule| RuleSpan {
                device: self.device,
                metric: self.metric,
                rule: &rule.name,
                span: *span,
            };
            self.rules.iter().map(rule)
        })
    }
}
