use std::collections::BTreeMap;

use garenne_protocol::sensor::Unit;
use proptest::{prelude::*, test_runner::TestCaseResult};

use super::*;
use crate::alarm::{AlarmEvent, Excursion, Hold, PendingRun, Point, Rules, find_excursions};

/// The rules of the tests. `per`, `duration` and steps are short, so that histories of a few readings exceed them.
fn rules() -> Vec<Rule> {
    let conditions = [
        "above = 6\nclear = 3",
        "above = 5",
        "below = 3\nclear = 6",
        "faster_than = 0\nper = \"1s\"",
        "faster_than = 40\nper = \"1s\"",
        "stuck_for = \"1s\"",
        "above = 5\nclear = 3\nfor = \"1s\"",
        "below = 5\nfor = \"1s\"",
    ];
    let rule = |condition| {
        let text = format!("[[rule]]\nname = \"r\"\nmetric = \"m\"\nunit = \"Cel\"\n{condition}");
        let mut rule = Rules::parse(&text).unwrap().matching("d", "m").next().unwrap().clone();
        if let Condition::Stuck { readings, .. }
        | Condition::Above { hold: Some(Hold { readings, .. }), .. }
        | Condition::Below { hold: Some(Hold { readings, .. }), .. } = &mut rule.condition
        {
            *readings = 7;
        }
        rule
    };
    conditions.into_iter().map(rule).collect()
}

fn rule(condition: Condition) -> Rule {
    let mut rule = rules().remove(0);
    rule.condition = condition;
    rule
}

/// Judges all readings in order of time, from the definitions in docs/sensor-data.md.
fn reference(rule: &Rule, points: &[Point]) -> Vec<Excursion> {
    let mut found: Vec<Excursion> = Vec::new();
    for (index, point) in points.iter().enumerate() {
        let before = &points[..index];
        let last = found.last().copied().filter(|last| last.ended.is_none());
        let (violates, hold) = match rule.condition {
            Condition::Above { limit, clear, hold } => {
                let is_held = || has_held(before, point, hold, |value| value > limit);
                (if last.is_some() { point.value > clear } else { point.value > limit && is_held() }, 0)
            }
            Condition::Below { limit, clear, hold } => {
                let is_held = || has_held(before, point, hold, |value| value < limit);
                (if last.is_some() { point.value < clear } else { point.value < limit && is_held() }, 0)
            }
            Condition::RateOfChange { limit, per } => {
                let step = per / 100;
                let begin_of_previous = (point.at.div_euclid(step) - 1) * step;
                let other = before.iter().rfind(|other| other.at < begin_of_previous);
                let is_fast = |other: &Point| {
                    (point.value - other.value).abs() > limit * ((point.at - other.at) as f64 / per as f64)
                };
                (other.is_some_and(is_fast), per)
            }
            Condition::Stuck { duration, readings } => {
                let equal = before.iter().rev().take_while(|other| other.value == point.value);
                let count = 1 + equal.clone().count();
                let since = equal.last().unwrap_or(point).at;
                (count >= readings || (count >= 3 && point.at - since >= duration), 0)
            }
            Condition::Silent { .. } => unreachable!(),
        };
        match found.last_mut().filter(|last| last.ended.is_none()) {
            Some(last) if violates => last.upto = point.at,
            Some(last) if point.at - last.upto >= hold => last.ended = Some(point.at),
            None if violates => {
                found.push(Excursion { since: point.at, upto: point.at, ended: None, value: point.value });
            }
            _ => {}
        }
    }
    found
}

/// Whether all readings in a row until a point are beyond the limit for long enough.
fn has_held(before: &[Point], point: &Point, hold: Option<Hold>, is_beyond: impl Fn(f64) -> bool) -> bool {
    let Some(Hold { duration, readings }) = hold else { return true };
    let run = before.iter().rev().take_while(|other| is_beyond(other.value));
    let since = run.clone().last().unwrap_or(point).at;
    1 + run.count() >= readings || point.at - since >= duration
}

/// Stored readings and alarms of one series.
#[derive(Default)]
struct Store {
    /// The readings by time: the value, the unit, and whether it is usable.
    readings: BTreeMap<Micros, (f64, &'static str, bool)>,
    /// The place of the rule, the alarm, and whether it is withdrawn, by id.
    alarms: BTreeMap<String, (usize, Alarm, bool)>,
    /// The state of rules after the newest reading, by their places.
    pending: BTreeMap<usize, Pending>,
    events: Vec<(String, AlarmEvent)>,
    /// The readings that were loaded and the loads.
    loaded: usize,
    rounds: usize,
}

impl Store {
    fn load(&self, span: &Span) -> Vec<Sample> {
        let sample = |(at, (value, unit, _)): (&Micros, &(f64, &str, bool))| Sample {
            at: *at,
            value: *value,
            unit: Unit::parse(unit).ok(),
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
    fn store(
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
        let mut judge = SeriesJudge::new(rules, changed, pending, sizes);
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

    fn points(&self, rule: &Rule) -> Vec<Point> {
        let all = Span { low: Micros::MIN, high: Micros::MAX, newest_first: false, limit: usize::MAX };
        self.load(&all).iter().filter_map(|sample| rule.convert(sample)).collect()
    }

    /// The alarms of a rule in order of time.
    fn intervals(&self, rule: usize) -> Vec<Excursion> {
        let all = AlarmSpan { from: Micros::MIN, to: Micros::MAX, and_previous: false };
        self.load_alarms(rule, &all).iter().map(Alarm::excursion).collect()
    }

    /// The known state of a rule is that of the newest readings.
    fn check_pending(&self, place: usize, rule: &Rule, points: &[Point]) -> TestCaseResult {
        let Some(pending) = self.pending.get(&place) else { return Ok(()) };
        let newest = self.readings.iter().rfind(|(_, (.., is_usable))| *is_usable).map(|(at, _)| *at);
        prop_assert_eq!(Some(pending.upto), newest);
        let run = points.iter().rev().take_while(|point| rule.condition.is_beyond_limit(point.value));
        let since = run.clone().last().map(|first| first.at);
        prop_assert_eq!(pending.run, since.map(|since| PendingRun { since, count: run.count() }));
        Ok(())
    }

    /// Each alarm was raised once, and cleared once unless it is open or was over when it was raised.
    fn check_events(&self) -> TestCaseResult {
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

fn page_sizes() -> impl Strategy<Value = PageSizes> {
    (1_usize..5, 1_usize..9, 1_usize..4, 1_usize..6, 1_usize..5).prop_map(
        |(following, further, preceding, more_preceding, places)| PageSizes {
            following,
            further: further.max(following),
            preceding,
            more_preceding,
            places,
        },
    )
}

/// A reading: its place in time, the value, the unit, and whether it is usable.
fn reading() -> impl Strategy<Value = (i64, f64, &'static str, bool)> + Clone {
    let unit = prop_oneof![12 => Just("Cel"), 1 => Just("K"), 2 => Just("Pa")];
    // Few values, so that readings repeat, are equal to their neighbors and lie between `limit` and `clear`.
    (
        0_i64..40,
        prop::sample::select(vec![0.0, 2.0, 4.0, 4.0, 4.0, 5.5, 7.0]),
        unit,
        prop::bool::weighted(0.85),
    )
}

/// The order in which readings arrive: any; or by time, then any.
fn history() -> impl Strategy<Value = Vec<Vec<(i64, f64, &'static str, bool)>>> {
    let any = prop::collection::vec(prop::collection::vec(reading(), 1..7), 1..12);
    let in_order = (prop::collection::vec(reading(), 1..40), 1_usize..5).prop_map(|(mut readings, size)| {
        readings.sort_by_key(|(place, ..)| *place);
        readings.chunks(size).map(<[_]>::to_vec).collect::<Vec<_>>()
    });
    prop_oneof![any.clone(), (in_order, any).prop_map(|(first, then)| [first, then].concat())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// After every batch, the alarms are those of judging all stored readings in order of time: for late, repeated,
    /// replaced and removed readings in any order and batches, and for any sizes of pages. The state of rules after the
    /// newest reading may be forgotten at any time.
    #[test]
    fn alarms_are_those_of_judging_all_readings_in_order_of_time(
        history in history(),
        spacing in prop::sample::select(vec![4_000, 9_000, 35_000, 300_000, 1_500_000]),
        sizes in page_sizes(),
        chosen in prop::collection::vec(0_usize..8, 1..4),
        forgetting in prop::collection::vec(prop::bool::weighted(0.2), 60),
    ) {
        let all = rules();
        let rules: Vec<_> = chosen.into_iter().map(|place| all[place].clone()).collect();
        let mut store = Store::default();
        for (batch, forgets) in history.into_iter().zip(forgetting) {
            if forgets {
                store.pending.clear();
            }
            let jitter = |place: i64| place * spacing + place * place % 7 * (spacing / 10);
            store.store(&rules, sizes, batch.into_iter().map(|(place, value, unit, usable)| (jitter(place), value, unit, usable)));
            for (place, rule) in rules.iter().enumerate() {
                let points = store.points(rule);
                let expected = reference(rule, &points);
                prop_assert_eq!(&find_excursions(&rule.condition, &points), &expected);
                prop_assert_eq!(store.intervals(place), expected, "{:?}", rule.condition);
                store.check_pending(place, rule, &points)?;
            }
            store.check_events()?;
        }
    }

    /// Extreme, infinite, NaN and equal values at any time, and alarms that do not fit them, cause no panic and no
    /// endless loop.
    #[test]
    fn any_readings_and_alarms_are_judged(
        readings in prop::collection::vec(
            (prop_oneof![any::<i64>().prop_map(|at| at / 4), 0_i64..5], prop::num::f64::ANY),
            0..50,
        ),
        alarms in prop::collection::vec((0_usize..8, -9_i64..9, 0_i64..9, prop::option::of(0_i64..9)), 0..9),
        changed in prop::collection::vec((any::<prop::sample::Index>(), prop::num::f64::ANY), 1..9),
        sizes in page_sizes(),
    ) {
        let stored = readings.iter().map(|(at, value)| (*at, (*value, "Cel", true))).collect();
        let mut store = Store { readings: stored, ..Store::default() };
        for (id, (rule, since, upto, ended)) in alarms.into_iter().enumerate() {
            let (upto, value) = (since + upto, Some(1.0));
            let alarm = Alarm { id: id.to_string(), since, upto, ended: ended.map(|ended| upto + ended), value };
            store.alarms.insert(id.to_string(), (rule, alarm, false));
        }
        if !readings.is_empty() {
            let changed = changed.into_iter().map(|(at, value)| (readings[at.index(readings.len())].0, value, "Cel", true));
            store.store(&rules(), sizes, changed);
            prop_assert!(store.rounds < 1000, "{}", store.rounds);
            prop_assert!(store.alarms.values().all(|(_, alarm, _)| alarm.since <= alarm.upto));
        }
    }
}

fn reading_of(&(at, value): &(Micros, f64)) -> (Micros, f64, &'static str, bool) {
    (at, value, "Cel", true)
}

/// Stores readings one by one.
fn stored(rule: &Rule, readings: &[(Micros, f64)]) -> Store {
    let mut store = Store::default();
    for reading in readings {
        store.store(std::slice::from_ref(rule), PageSizes::default(), [reading_of(reading)]);
    }
    store
}

fn events(store: &Store) -> Vec<(&str, AlarmEvent)> {
    store.events.iter().map(|(id, event)| (id.as_str(), *event)).collect()
}

const TWO_ALARMS: [Excursion; 2] = [
    Excursion { since: 10, upto: 20, ended: Some(30), value: 60.0 },
    Excursion { since: 50, upto: 50, ended: Some(60), value: 61.0 },
];

#[test]
fn late_readings_split_an_alarm() {
    let above = rule(Condition::Above { limit: 50.0, clear: 50.0, hold: None });
    let in_order = [(10, 60.0), (20, 60.0), (30, 10.0), (40, 10.0), (50, 61.0), (60, 20.0)];
    let store = stored(&above, &in_order);
    assert_eq!(store.intervals(0), TWO_ALARMS);
    use AlarmEvent::{Cleared, Raised};
    assert_eq!(events(&store), [("1", Raised), ("1", Cleared), ("2", Raised), ("2", Cleared)]);

    let late = [(10, 60.0), (20, 60.0), (50, 61.0), (60, 20.0), (30, 10.0), (40, 10.0)];
    let store = stored(&above, &late);
    assert_eq!(store.intervals(0), TWO_ALARMS);
    assert_eq!(events(&store), [("1", Raised), ("1", Cleared), ("2", Raised)]);
}

#[test]
fn every_order_of_arrival_gives_the_same_alarms() {
    let above = rule(Condition::Above { limit: 50.0, clear: 50.0, hold: None });
    let readings = [(10, 60.0), (20, 60.0), (30, 10.0), (40, 10.0), (50, 61.0), (60, 20.0)];
    let mut order: Vec<usize> = (0..readings.len()).collect();
    let mut orders = 0;
    // Heap's algorithm.
    let mut counts = [0; 6];
    let mut index = 0;
    loop {
        orders += 1;
        let store = stored(&above, &order.iter().map(|place| readings[*place]).collect::<Vec<_>>());
        assert_eq!(store.intervals(0), TWO_ALARMS, "{order:?}");
        while index < counts.len() && counts[index] >= index {
            counts[index] = 0;
            index += 1;
        }
        if index == counts.len() {
            break;
        }
        order.swap(if index % 2 == 0 { 0 } else { counts[index] }, index);
        counts[index] += 1;
        index = 0;
    }
    assert_eq!(orders, 720);
}

#[test]
fn an_alarm_whose_readings_are_replaced_is_withdrawn() {
    let above = rule(Condition::Above { limit: 50.0, clear: 50.0, hold: None });
    let store = stored(&above, &[(10, 10.0), (20, 60.0), (20, 10.0)]);
    assert_eq!(store.intervals(0), []);
    assert_eq!(events(&store), [("1", AlarmEvent::Raised), ("1", AlarmEvent::Cleared)]);
    // One that is over was reported as cleared.
    let store = stored(&above, &[(10, 10.0), (20, 60.0), (30, 10.0), (20, 10.0)]);
    assert_eq!(store.intervals(0), []);
    assert_eq!(events(&store), [("1", AlarmEvent::Raised), ("1", AlarmEvent::Cleared)]);
}

#[test]
fn a_late_excursion_is_raised_once_and_already_ended() {
    let above = rule(Condition::Above { limit: 50.0, clear: 50.0, hold: None });
    let store = stored(&above, &[(1, 0.0), (3, 0.0), (2, 60.0), (2, 60.0)]);
    assert_eq!(store.intervals(0), [Excursion { since: 2, upto: 2, ended: Some(3), value: 60.0 }]);
    assert_eq!(events(&store), [("1", AlarmEvent::Raised)]);
}

#[test]
fn an_alarm_that_was_cleared_by_mistake_is_raised_again_under_a_new_id() {
    let above = rule(Condition::Above { limit: 50.0, clear: 50.0, hold: None });
    let store = stored(&above, &[(10, 60.0), (20, 10.0), (20, 60.0)]);
    assert_eq!(store.intervals(0), [Excursion { since: 10, upto: 20, ended: None, value: 60.0 }]);
    use AlarmEvent::{Cleared, Raised};
    assert_eq!(events(&store), [("1", Raised), ("1", Cleared), ("2", Raised)]);
}

#[test]
fn a_reading_at_the_end_of_a_long_history_takes_one_load_of_few_readings() {
    for rule in rules() {
        let mut store = Store::default();
        let rules = std::slice::from_ref(&rule);
        // No two neighbors are equal, and no value is beyond a limit for long.
        store.readings = (0..100_000).map(|n| (n * 10_000, ((n % 5) as f64, "Cel", true))).collect();
        store.store(rules, PageSizes::default(), [(1_000_003_000, 5.0, "Cel", true)]);
        let expected = match rule.condition {
            Condition::RateOfChange { .. } => 1 + 3,
            Condition::Stuck { .. }
            | Condition::Above { hold: Some(_), .. }
            | Condition::Below { hold: Some(_), .. } => 1 + 64,
            _ => 1,
        };
        assert_eq!((store.rounds, store.loaded), (1, expected), "{:?}", rule.condition);
        // A flagged reading needs nothing.
        store.store(rules, PageSizes::default(), [(1_000_013_000, 5.0, "Cel", false)]);
        assert_eq!((store.rounds, store.loaded), (2, expected), "{:?}", rule.condition);
    }
}

#[test]
fn a_late_reading_in_a_long_history_takes_few_readings() {
    for rule in rules() {
        let rules = std::slice::from_ref(&rule);
        let mut store = Store::default();
        let history = (0..20_000).map(|n| (n * 10_000, (n % 8) as f64, "Cel", true));
        store.store(rules, PageSizes::default(), history);
        (store.rounds, store.loaded) = (0, 0);
        store.store(rules, PageSizes::default(), [(100_005_000, 4.5, "Cel", true)]);
        assert_eq!(store.intervals(0), reference(&rule, &store.points(&rule)));
        assert!(store.rounds <= 5 && store.loaded < 300, "{} {} {rule:?}", store.rounds, store.loaded);
    }
}

#[test]
fn scattered_late_readings_are_loaded_together() {
    for rule in rules() {
        let rules = std::slice::from_ref(&rule);
        let mut store = Store::default();
        store.store(
            rules,
            PageSizes::default(),
            (0..50_000).map(|n| (n * 10_000, (n % 8) as f64, "Cel", true)),
        );
        (store.rounds, store.loaded) = (0, 0);
        store.store(rules, PageSizes::default(), (0..250).map(|n| (n * 2_000_000 + 5_000, 4.5, "Cel", true)));
        assert_eq!(store.intervals(0), reference(&rule, &store.points(&rule)));
        // A rate within an alarm needs the readings of `per` before it.
        let expected = if let Condition::RateOfChange { .. } = rule.condition { 1500 } else { 6 };
        assert!(store.rounds <= expected, "{} {} {rule:?}", store.rounds, store.loaded);
    }
}

/// The readings that are beyond the limit and have not been for long enough are not loaded again with every batch.
#[test]
fn a_long_hold_at_a_high_rate_loads_each_reading_once() {
    const SECOND: Micros = 1_000_000;
    let hold = Some(Hold { duration: 7_200 * SECOND, readings: 65_536 });
    let above = rule(Condition::Above { limit: 50.0, clear: 50.0, hold });
    let rules = std::slice::from_ref(&above);
    let mut store = Store::default();
    store.store(rules, PageSizes::default(), [(0, 10.0, "Cel", true)]);
    // Ten readings a second, a batch each second.
    let batch = |second: i64| (1..=10).map(move |n| (second * SECOND + n * SECOND / 10, 60.0, "Cel", true));
    for second in 0..3_000 {
        store.store(rules, PageSizes::default(), batch(second));
    }
    // The first one is searched in all of the past, too.
    assert_eq!((store.loaded, store.rounds), (30_001, 3_002));
    assert_eq!(store.intervals(0), []);
    // A late reading within them is judged with all of them, and the next batch is not.
    store.store(rules, PageSizes::default(), [(SECOND + 1, 10.0, "Cel", true)]);
    let loaded = store.loaded;
    assert!(loaded > 50_000, "{loaded}");
    store.store(rules, PageSizes::default(), batch(3_000));
    assert_eq!(store.loaded, loaded + 10);
    for second in 3_001..6_555 {
        store.store(rules, PageSizes::default(), batch(second));
    }
    let found = store.intervals(0);
    assert_eq!(found, find_excursions(&above.condition, &store.points(&above)));
    // The limit of readings is reached before two hours have passed.
    assert_eq!((found.len(), found[0].ended), (1, None));
}

/// A late reading may concern any number of later ones. They are loaded page by page.
#[test]
fn a_late_reading_that_extends_an_alarm_is_judged_to_its_end() {
    let above = rule(Condition::Above { limit: 6.0, clear: 3.0, hold: None });
    let rules = std::slice::from_ref(&above);
    let mut store = Store::default();
    store.store(rules, PageSizes::default(), (1..100_000).map(|n| (n, 5.0, "Cel", true)));
    store.store(rules, PageSizes::default(), [(100_000, 2.0, "Cel", true), (100_001, 5.0, "Cel", true)]);
    assert_eq!(store.intervals(0), []);
    store.store(rules, PageSizes::default(), [(0, 7.0, "Cel", true)]);
    let whole = Excursion { since: 0, upto: 99_999, ended: Some(100_000), value: 7.0 };
    assert_eq!(store.intervals(0), [whole]);
}
