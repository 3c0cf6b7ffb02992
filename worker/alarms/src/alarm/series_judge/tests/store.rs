//! The database of the tests: the readings and alarms of one series, in memory.

use std::collections::BTreeMap;

use garenne_protocol::sensor::Unit;
use proptest::{prelude::*, test_runner::TestCaseResult};

use crate::alarm::{
    Alarm, AlarmChange, AlarmEvent, AlarmSpan, ChangedReading, Excursion, Micros, PageSizes, Pending,
    PendingRun, Point, Rule, Sample, SeriesJudge, Span,
};

/// Stored readings and alarms of one series.
#[derive(Default)]
pub(super) struct Store {
    /// The readings by time: the value, the unit, and whether it is usable.
    pub(super) readings: BTreeMap<Micros, (f64, &'static str, bool)>,
    /// The place of the rule, the alarm, and whether it is withdrawn, by id.
    pub(super) alarms: BTreeMap<String, (usize, Alarm, bool)>,
    /// The state of rules after the newest reading, by their places.
    pub(super) pending: BTreeMap<usize, Pending>,
    pub(super) events: Vec<(String, AlarmEvent)>,
    /// The readings that were loaded and the loads.
    pub(super) loaded: usize,
    pub(super) rounds: usize,
}

impl Store {
    fn load(&self, span: &Span) -> Vec<Sample> {
        let sample = |(at, (value, unit, _)): (&Micros, &(f64, &str, bool))| Sample {
            at: *at,
            value: *value,
            unit: Unit::parse(unit).ok(),
            start: None,
            zero: None,
        };
        let usable = self.readings.range(span.low..span.high).filter(|(_, (.., is_usable))| *is_usable);
        match span.newest_first {
            true => usable.rev().take(span.limit).map(sample).collect(),
            false => usable.take(span.limit).map(sample).collect(),
        }
    }

    fn load_alarms(&self, rule: usize, span: &AlarmSpan) -> Vec<Alarm> {
        let known = self.alarms.values().filter(|(of, _, is_withdrawn)| *of == rule && !is_withdrawn);
        let mut known: Vec<_> = known.map(|(_, alarm, _)| alarm.clone()).collect();
        known.sort_by_key(|alarm| alarm.since);
        let first = known.partition_point(|alarm| alarm.since < span.from);
        let end = known.partition_point(|alarm| alarm.since <= span.to);
        let first = first.saturating_sub(usize::from(span.and_previous));
        known.into_iter().take(end).skip(first).collect()
    }

    /// Stores a batch and judges what it changed.
    pub(super) fn store(
        &mut self,
        rules: &[Rule],
        sizes: PageSizes,
        batch: impl IntoIterator<Item = (Micros, f64, &'static str, bool)>,
    ) {
        let mut changed = BTreeMap::new();
        for (at, value, unit, is_usable) in batch {
            let new = (value, unit, is_usable);
            if self.readings.insert(at, new) != Some(new) {
                changed.insert(at, is_usable);
            }
        }
        let changed = changed.into_iter().map(|(at, is_usable)| ChangedReading { at, is_usable }).collect();
        let pending = std::mem::take(&mut self.pending);
        let mut judge = SeriesJudge::new(rules, None, changed, pending, sizes);
        for _ in 0.. {
            let spans = judge.spans();
            if spans.is_empty() {
                break;
            }
            self.rounds += 1;
            let readings: Vec<_> = spans.iter().map(|span| self.load(span)).collect();
            self.loaded += readings.iter().map(Vec::len).sum::<usize>();
            judge.add_readings(readings);
            let mut known = Vec::new();
            for span in judge.alarm_spans() {
                for place in 0..rules.len() {
                    known.extend(self.load_alarms(place, span).into_iter().map(|alarm| (place, alarm)));
                }
            }
            let mut next = self.alarms.len();
            let new_id = || {
                next += 1;
                next.to_string()
            };
            for AlarmChange { rule, alarm, is_withdrawn, event } in judge.judge(known, new_id) {
                self.events.extend(event.map(|event| (alarm.id.clone(), event)));
                self.alarms.insert(alarm.id.clone(), (rule, alarm, is_withdrawn));
            }
        }
        self.pending = judge.pending().collect();
    }

    pub(super) fn points(&self, rule: &Rule) -> Vec<Point> {
        let all = Span { low: Micros::MIN, high: Micros::MAX, newest_first: false, limit: usize::MAX };
        self.load(&all).iter().filter_map(|sample| rule.convert(sample)).collect()
    }

    /// The alarms of a rule in order of time.
    pub(super) fn intervals(&self, rule: usize) -> Vec<Excursion> {
        let all = AlarmSpan { from: Micros::MIN, to: Micros::MAX, and_previous: false };
        self.load_alarms(rule, &all).iter().map(Alarm::excursion).collect()
    }

    /// The known state of a rule is that of the newest readings.
    pub(super) fn check_pending(&self, place: usize, rule: &Rule, points: &[Point]) -> TestCaseResult {
        let Some(pending) = self.pending.get(&place) else { return Ok(()) };
        let newest = self.readings.iter().rfind(|(_, (.., is_usable))| *is_usable).map(|(at, _)| *at);
        prop_assert_eq!(Some(pending.upto), newest);
        let run = points.iter().rev().take_while(|point| rule.condition.is_beyond_limit(point.value));
        let since = run.clone().last().map(|first| first.at);
        prop_assert_eq!(pending.run, since.map(|since| PendingRun { since, count: run.count() }));
        Ok(())
    }

    /// Each alarm was raised once, and cleared once unless it is open or was over when it was raised.
    pub(super) fn check_events(&self) -> TestCaseResult {
        for (id, (_, alarm, is_withdrawn)) in &self.alarms {
            let of = |event| self.events.iter().filter(|known| **known == (id.clone(), event)).count();
            prop_assert_eq!(of(AlarmEvent::Raised), 1, "{:?}", alarm);
            prop_assert!(of(AlarmEvent::Cleared) <= 1, "{:?}", alarm);
            if alarm.ended.is_none() {
                prop_assert_eq!(of(AlarmEvent::Cleared), usize::from(*is_withdrawn), "{:?}", alarm);
            }
        }
        Ok(())
    }
}
