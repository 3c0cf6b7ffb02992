//! What newly stored readings mean for the alarms of a rule: which are raised, which are over.
//!
//! An alarm stands for a stretch of time, and an excursion that overlaps it is the same one. So a late
//! reading in the middle, one that reaches further back, and one that comes twice raise nothing, and a
//! late one that is an excursion of its own does.

use super::{
    Micros, Point,
    judge::{Excursion, excursions},
    rules::{Condition, Rule},
};

/// An alarm of one device, metric and rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Alarm {
    pub(crate) id: String,
    pub(crate) since: Micros,
    pub(crate) upto: Micros,
    pub(crate) ended: Option<Micros>,
    /// The value that raised it; none for silence.
    pub(crate) value: Option<f64>,
}

/// Something to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// There is a new alarm.
    Raised,
    /// It is over.
    Cleared,
}

/// Brings `alarms`, those that are open or reach into the time of `points`, up to date. `first_new` is the
/// earliest reading that was not judged before: an excursion that was over by then was known when it
/// happened, or was before the rule. Answers what is new and which alarms it is about, by place; alarms
/// that have only grown are to be stored, too.
pub(crate) fn reconcile(
    rule: &Rule,
    points: &[Point],
    first_new: Micros,
    alarms: &mut Vec<Alarm>,
    id: impl Fn(Micros) -> String,
) -> Vec<(usize, News)> {
    let mut news = Vec::new();
    let Some(first) = points.first() else { return news };
    if let Condition::Silent { .. } = rule.condition {
        for (place, alarm) in alarms.iter_mut().enumerate() {
            let next = points.iter().find(|point| point.at > alarm.upto);
            if let (None, Some(next)) = (alarm.ended, next) {
                alarm.ended = Some(next.at);
                news.push((place, News::Cleared));
            }
        }
        return news;
    }
    let within = alarms
        .iter()
        .position(|alarm| alarm.since <= first.at && alarm.ended.is_none_or(|ended| first.at < ended));
    let found = excursions(&rule.condition, points, within.is_some());
    let mut covered = vec![false; found.len()];
    for (place, alarm) in alarms.iter_mut().enumerate() {
        let (since, upto) = (alarm.since, alarm.upto);
        let is_its = |excursion: &Excursion| {
            let goes_on = within == Some(place) && excursion.since == first.at;
            goes_on || (since <= excursion.upto && excursion.since <= upto)
        };
        for (covered, excursion) in covered.iter_mut().zip(&found).filter(|(_, excursion)| is_its(excursion))
        {
            *covered = true;
            alarm.since = alarm.since.min(excursion.since);
        }
        // A late reading may have split it: it is over when the last part is, as far as can be seen.
        let sees_its_end = points.last().is_some_and(|last| upto <= last.at);
        let Some(last) = found.iter().rfind(|excursion| is_its(excursion)).filter(|_| sees_its_end) else {
            continue;
        };
        alarm.upto = last.upto;
        if let (None, Some(ended)) = (alarm.ended, last.ended) {
            alarm.ended = Some(ended);
            news.push((place, News::Cleared));
        }
    }
    for (excursion, _) in
        found.iter().zip(covered).filter(|(found, covered)| !covered && found.upto >= first_new)
    {
        let Excursion { since, upto, ended, value } = *excursion;
        alarms.push(Alarm { id: id(since), since, upto, ended, value: Some(value) });
        news.push((alarms.len() - 1, News::Raised));
    }
    news
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::alarm::Rules;

    fn rules(condition: &str) -> Rules {
        Rules::parse(&format!("[[rule]]\nname = \"r\"\nmetric = \"m\"\n{condition}")).unwrap()
    }

    /// A store in memory: readings come in batches, each judged against the `back` before it.
    fn replay(
        rule: &Rule,
        arrivals: &[Vec<Point>],
        back: usize,
    ) -> (Vec<Point>, Vec<Alarm>, Vec<(usize, News)>) {
        let (mut stored, mut alarms, mut told): (Vec<Point>, Vec<Alarm>, _) = (vec![], vec![], vec![]);
        for batch in arrivals.iter().filter(|batch| !batch.is_empty()) {
            for point in batch {
                if let Err(place) = stored.binary_search_by_key(&point.at, |known| known.at) {
                    stored.insert(place, *point);
                }
            }
            let first_new = batch.iter().map(|point| point.at).min().unwrap();
            let begin = stored.partition_point(|point| point.at < first_new).saturating_sub(back);
            told.extend(reconcile(rule, &stored[begin..], first_new, &mut alarms, |at| at.to_string()));
        }
        (stored, alarms, told)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// Whatever the order, the batches and the repetitions: every excursion is covered by one alarm,
        /// each alarm is told of once, and none where there is no excursion.
        #[test]
        fn any_order_and_any_repetition_raises_each_excursion_once(
            values in prop::collection::vec(0_u8..10, 1..40),
            order in prop::collection::vec((any::<prop::sample::Index>(), 1_usize..5), 1..60),
            back in 1_usize..6,
        ) {
            let rules = rules("above = 6\nclear = 3");
            let rule = rules.of("d", "m").next().unwrap();
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
            let (stored, alarms, told) = replay(rule, &arrivals, back.max(points.len()));
            prop_assert_eq!(&stored, &points);
            let found = excursions(&rule.condition, &points, false);
            for excursion in &found {
                let covers = |alarm: &Alarm| alarm.since <= excursion.upto && excursion.since <= alarm.upto;
                prop_assert!(alarms.iter().any(covers), "{:?} in {:?}", excursion, alarms);
            }
            // Values between clear and limit are as those before them, so late ones may join what was told
            // apart; but never is more told than there is.
            prop_assert!(alarms.len() <= found.len(), "{:?} for {:?}", alarms, found);
            for (place, alarm) in alarms.iter().enumerate() {
                prop_assert!(found.iter().any(|e| alarm.since <= e.upto && e.since <= alarm.upto));
                let raised = told.iter().filter(|news| **news == (place, News::Raised)).count();
                let cleared = told.iter().filter(|news| **news == (place, News::Cleared)).count();
                prop_assert!(raised == 1 && cleared <= 1);
                let goes_on = found.last().is_some_and(|last| last.ended.is_none() && last.since <= alarm.upto);
                prop_assert_eq!(alarm.ended.is_none(), goes_on, "{:?} in {:?}", alarm, found);
            }
        }

        /// In order, however little of the past is looked at, exactly the excursions are told of, with
        /// their ends.
        #[test]
        fn in_order_a_few_readings_of_the_past_are_enough(values in prop::collection::vec(0_u8..10, 1..80)) {
            let rules = rules("below = 3\nclear = 6");
            let rule = rules.of("d", "m").next().unwrap();
            let points: Vec<_> =
                (0..).zip(&values).map(|(at, value)| Point { at, value: f64::from(*value) }).collect();
            let arrivals: Vec<_> = points.iter().map(|point| vec![*point]).collect();
            let (_, alarms, _) = replay(rule, &arrivals, 2);
            let found: Vec<_> =
                excursions(&rule.condition, &points, false).iter().map(|e| (e.since, e.upto, e.ended)).collect();
            let kept: Vec<_> = alarms.iter().map(|a| (a.since, a.upto, a.ended)).collect();
            prop_assert_eq!(kept, found);
        }

    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Hostile readings: huge, tiny, infinite, none, equal, at any time. An answer, never a panic.
        #[test]
        fn anything_is_judged(
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
            let rule = rules.of("d", "m").next().unwrap();
            points.sort_by_key(|(at, _)| *at);
            let points: Vec<_> = points.into_iter().map(|(at, value)| Point { at, value }).collect();
            let open = Alarm { id: "a".into(), since: i64::MIN, upto: 0, ended: None, value: None };
            let mut alarms = vec![open];
            reconcile(rule, &points, first_new, &mut alarms, |at| at.to_string());
            prop_assert!(alarms.iter().all(|alarm| alarm.since <= alarm.upto));
        }
    }

    #[test]
    fn a_late_spike_is_raised_and_told_to_be_over_at_once() {
        let rules = rules("above = 6");
        let rule = rules.of("d", "m").next().unwrap();
        let point = |at, value| Point { at, value };
        let (_, alarms, told) =
            replay(rule, &[vec![point(1, 0.0)], vec![point(3, 0.0)], vec![point(2, 9.0)]], 9);
        let spike = Alarm { id: "2".into(), since: 2, upto: 2, ended: Some(3), value: Some(9.0) };
        assert_eq!((alarms, told), (vec![spike], vec![(0, News::Raised)]));
    }

    #[test]
    fn the_next_reading_ends_a_silence() {
        let rules = rules("silent_for = \"1m\"");
        let rule = rules.of("d", "m").next().unwrap();
        let mut alarms = vec![Alarm { id: "s".into(), since: 5, upto: 5, ended: None, value: None }];
        let points = |at| [Point { at: 5, value: 1.0 }, Point { at, value: 1.0 }];
        assert_eq!(reconcile(rule, &points(4)[..1], 4, &mut alarms, |_| unreachable!()), []);
        assert_eq!(reconcile(rule, &points(9), 9, &mut alarms, |_| unreachable!()), [(0, News::Cleared)]);
        assert_eq!(alarms[0].ended, Some(9));
    }
}
