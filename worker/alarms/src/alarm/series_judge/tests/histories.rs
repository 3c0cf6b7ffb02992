//! Any readings in any order of arrival give the alarms of the reference.

use proptest::prelude::*;

use super::{reference::reference, rules::rules, store::Store};
use crate::alarm::{Alarm, PageSizes, find_excursions};

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
        chosen in prop::collection::vec(0_usize..10, 1..4),
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
                prop_assert_eq!(&find_excursions(&rule.condition, None, &points), &expected);
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
        alarms in prop::collection::vec((0_usize..10, -9_i64..9, 0_i64..9, prop::option::of(0_i64..9)), 0..9),
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
