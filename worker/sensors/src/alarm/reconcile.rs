//! Derives from new readings which alarms of a rule are raised and which are cleared.
//!
//! An alarm covers an interval of time, and an excursion that overlaps it belongs to it. So a late reading
//! within the interval, one that extends it to the past, and a repeated one raise nothing. A late reading
//! that is an excursion of its own raises an alarm.

use super::condition::{Condition, Micros, Point};
use super::excursion::{Excursion, find_excursions};
use super::rules::Rule;

/// An alarm of one device, metric and rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Alarm {
    /// The id, unique in the fleet.
    pub id: String,
    /// The time of the first violating reading; for silence, that of the last reading before it.
    pub since: Micros,
    /// The time of the last violating reading; for silence, the same as `since`.
    pub upto: Micros,
    /// The time of the reading that cleared it; none while it is open.
    pub ended: Option<Micros>,
    /// The value that raised it, in the rule's unit; none for silence.
    pub value: Option<f64>,
}

/// A change of an alarm that an alert reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmEvent {
    /// The alarm is new.
    Raised,
    /// The alarm is over.
    Cleared,
}

/// Updates `alarms` from `points` and returns the events, each with the index of its alarm.
///
/// - `points` are ordered by time and include enough readings before the new ones
///   ([`Condition::lookback`]).
/// - `first_new` is the time of the earliest reading that was not evaluated before. Excursions that ended
///   before it raise nothing: they were reported when they happened, or precede the rule.
/// - `alarms` are the alarms that are open or overlap `points`. New ones are appended. An alarm may change
///   without an event if its interval grows.
/// - `alarm_id` makes the id of an alarm from its `since`.
pub fn reconcile(
    rule: &Rule,
    points: &[Point],
    first_new: Micros,
    alarms: &mut Vec<Alarm>,
    alarm_id: impl Fn(Micros) -> String,
) -> Vec<(usize, AlarmEvent)> {
    let Some(first) = points.first() else { return Vec::new() };
    if let Condition::Silent { .. } = rule.condition {
        return clear_silences(points, alarms);
    }
    let open_at_start = alarms
        .iter()
        .position(|alarm| alarm.since <= first.at && alarm.ended.is_none_or(|ended| first.at < ended));
    let excursions = find_excursions(&rule.condition, points, open_at_start.is_some());
    let mut is_known = vec![false; excursions.len()];
    let mut events = Vec::new();
    for (index, alarm) in alarms.iter_mut().enumerate() {
        let (since, upto) = (alarm.since, alarm.upto);
        let belongs = |excursion: &Excursion| {
            let continues = open_at_start == Some(index) && excursion.since == first.at;
            continues || (since <= excursion.upto && excursion.since <= upto)
        };
        for (is_known, excursion) in is_known.iter_mut().zip(&excursions).filter(|(_, e)| belongs(e)) {
            *is_known = true;
            alarm.since = alarm.since.min(excursion.since);
        }
        // A late reading may have split the alarm's excursion. The last part decides on its end, if `points`
        // reach that far.
        let covers_end = points.last().is_some_and(|last| upto <= last.at);
        let Some(last) = excursions.iter().rfind(|excursion| belongs(excursion)).filter(|_| covers_end)
        else {
            continue;
        };
        alarm.upto = last.upto;
        if let (None, Some(ended)) = (alarm.ended, last.ended) {
            alarm.ended = Some(ended);
            events.push((index, AlarmEvent::Cleared));
        }
    }
    for (excursion, is_known) in excursions.into_iter().zip(is_known) {
        let Excursion { since, upto, ended, value } = excursion;
        if !is_known && upto >= first_new {
            alarms.push(Alarm { id: alarm_id(since), since, upto, ended, value: Some(value) });
            events.push((alarms.len() - 1, AlarmEvent::Raised));
        }
    }
    events
}

/// Clears each open silence that a later reading ends.
fn clear_silences(points: &[Point], alarms: &mut [Alarm]) -> Vec<(usize, AlarmEvent)> {
    let mut events = Vec::new();
    for (index, alarm) in alarms.iter_mut().enumerate() {
        let next = points.iter().find(|point| point.at > alarm.upto);
        if let (None, Some(next)) = (alarm.ended, next) {
            alarm.ended = Some(next.at);
            events.push((index, AlarmEvent::Cleared));
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::alarm::Rules;

    fn rules(condition: &str) -> Rules {
        Rules::parse(&format!("[[rule]]\nname = \"r\"\nmetric = \"m\"\n{condition}")).unwrap()
    }

    /// Stores batches of readings in memory and evaluates each with the `lookback` readings before it.
    fn replay(
        rule: &Rule,
        arrivals: &[Vec<Point>],
        lookback: usize,
    ) -> (Vec<Point>, Vec<Alarm>, Vec<(usize, AlarmEvent)>) {
        let (mut stored, mut alarms, mut events): (Vec<Point>, Vec<Alarm>, _) = (vec![], vec![], vec![]);
        for batch in arrivals.iter().filter(|batch| !batch.is_empty()) {
            for point in batch {
                if let Err(index) = stored.binary_search_by_key(&point.at, |known| known.at) {
                    stored.insert(index, *point);
                }
            }
            let first_new = batch.iter().map(|point| point.at).min().unwrap();
            let begin = stored.partition_point(|point| point.at < first_new).saturating_sub(lookback);
            events.extend(reconcile(rule, &stored[begin..], first_new, &mut alarms, |at| at.to_string()));
        }
        (stored, alarms, events)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// For any order, batches and repetitions, every excursion has an alarm, each alarm is raised once,
        /// and no alarm is without an excursion.
        #[test]
        fn each_excursion_raises_one_alarm_in_any_order_of_arrival(
            values in prop::collection::vec(0_u8..10, 1..40),
            order in prop::collection::vec((any::<prop::sample::Index>(), 1_usize..5), 1..60),
        ) {
            let rules = rules("above = 6\nclear = 3");
            let rule = rules.matching("d", "m").next().unwrap();
            let points: Vec<_> =
                (0..).zip(&values).map(|(at, value)| Point { at, value: f64::from(*value) }).collect();
            let mut arrivals: Vec<Vec<Point>> = order
                .iter()
                .map(|(index, length)| {
                    let begin = index.index(points.len());
                    points[begin..(begin + length).min(points.len())].to_vec()
                })
                .collect();
            arrivals.extend(points.iter().rev().map(|point| vec![*point]));
            let (stored, alarms, events) = replay(rule, &arrivals, points.len());
            prop_assert_eq!(&stored, &points);
            let found = find_excursions(&rule.condition, &points, false);
            for excursion in &found {
                let covers = |alarm: &Alarm| alarm.since <= excursion.upto && excursion.since <= alarm.upto;
                prop_assert!(alarms.iter().any(covers), "{:?} in {:?}", excursion, alarms);
            }
            // A late reading may join excursions that were reported apart. There are never more alarms than
            // excursions.
            prop_assert!(alarms.len() <= found.len(), "{:?} for {:?}", alarms, found);
            for (index, alarm) in alarms.iter().enumerate() {
                prop_assert!(found.iter().any(|e| alarm.since <= e.upto && e.since <= alarm.upto));
                let raised = events.iter().filter(|event| **event == (index, AlarmEvent::Raised)).count();
                let cleared = events.iter().filter(|event| **event == (index, AlarmEvent::Cleared)).count();
                prop_assert!(raised == 1 && cleared <= 1);
                let is_open = found.last().is_some_and(|last| last.ended.is_none() && last.since <= alarm.upto);
                prop_assert_eq!(alarm.ended.is_none(), is_open, "{:?} in {:?}", alarm, found);
            }
        }

        /// In order of time, two readings of look-back give exactly the excursions and their ends.
        #[test]
        fn two_readings_of_lookback_suffice_for_readings_in_order(values in prop::collection::vec(0_u8..10, 1..80)) {
            let rules = rules("below = 3\nclear = 6");
            let rule = rules.matching("d", "m").next().unwrap();
            let points: Vec<_> =
                (0..).zip(&values).map(|(at, value)| Point { at, value: f64::from(*value) }).collect();
            let arrivals: Vec<_> = points.iter().map(|point| vec![*point]).collect();
            let (_, alarms, _) = replay(rule, &arrivals, 2);
            let found: Vec<_> =
                find_excursions(&rule.condition, &points, false).iter().map(|e| (e.since, e.upto, e.ended)).collect();
            let kept: Vec<_> = alarms.iter().map(|a| (a.since, a.upto, a.ended)).collect();
            prop_assert_eq!(kept, found);
        }

    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Extreme, infinite, NaN and equal values at any time cause no panic.
        #[test]
        fn any_points_are_reconciled_without_panic(
            mut points in prop::collection::vec(
                (prop_oneof![any::<i64>().prop_map(|at| at / 4), 0_i64..5], prop::num::f64::ANY),
                0..50,
            ),
            condition in prop::sample::select(vec![
                "above = 0", "below = 1e300\nclear = 1.7e308", "faster_than = 0\nper = \"1s\"",
                "faster_than = 1e308\nper = \"30d\"", "stuck_for = \"1s\"", "stuck_for = \"30d\"", "silent_for = \"1s\"",
            ]),
            first_new in any::<i64>(),
        ) {
            let rules = rules(condition);
            let rule = rules.matching("d", "m").next().unwrap();
            points.sort_by_key(|(at, _)| *at);
            let points: Vec<_> = points.into_iter().map(|(at, value)| Point { at, value }).collect();
            let open = Alarm { id: "a".into(), since: i64::MIN, upto: 0, ended: None, value: None };
            let mut alarms = vec![open];
            reconcile(rule, &points, first_new, &mut alarms, |at| at.to_string());
            prop_assert!(alarms.iter().all(|alarm| alarm.since <= alarm.upto));
        }
    }

    #[test]
    fn a_late_excursion_is_raised_already_ended() {
        let rules = rules("above = 6");
        let rule = rules.matching("d", "m").next().unwrap();
        let point = |at, value| Point { at, value };
        let (_, alarms, events) =
            replay(rule, &[vec![point(1, 0.0)], vec![point(3, 0.0)], vec![point(2, 9.0)]], 9);
        let spike = Alarm { id: "2".into(), since: 2, upto: 2, ended: Some(3), value: Some(9.0) };
        assert_eq!((alarms, events), (vec![spike], vec![(0, AlarmEvent::Raised)]));
    }

    #[test]
    fn the_next_reading_clears_a_silence() {
        let rules = rules("silent_for = \"1m\"");
        let rule = rules.matching("d", "m").next().unwrap();
        let mut alarms = vec![Alarm { id: "s".into(), since: 5, upto: 5, ended: None, value: None }];
        let points = |at| [Point { at: 5, value: 1.0 }, Point { at, value: 1.0 }];
        assert_eq!(reconcile(rule, &points(4)[..1], 4, &mut alarms, |_| unreachable!()), []);
        assert_eq!(
            reconcile(rule, &points(9), 9, &mut alarms, |_| unreachable!()),
            [(0, AlarmEvent::Cleared)]
        );
        assert_eq!(alarms[0].ended, Some(9));
    }
}
