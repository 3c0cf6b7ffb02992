//! How many readings are loaded.

use super::{
    reference::reference,
    rules::{rule, rules},
    store::Store,
};
use crate::alarm::{Condition, Excursion, Hold, Micros, PageSizes, find_excursions};

#[test]
fn a_reading_at_the_end_of_a_long_history_takes_one_load_of_few_readings() {
    for rule in rules() {
        let mut store = Store::default();
        let rules = std::slice::from_ref(&rule);
        // No two neighbors are equal, and no value is beyond a limit for long.
        store.readings = (0..100_000).map(|n| (n * 10_000, ((n % 5) as f64, "Cel", true))).collect();
        store.store(rules, PageSizes::default(), [(1_000_003_000, 5.0, "Cel", true)]);
        let (rounds, expected) = match rule.condition {
            // The readings of the time that it refers to, page by page.
            Condition::Consumption { .. } => (2, 1 + 64 + 4096),
            Condition::RateOfChange { .. } => (1, 1 + 3),
            Condition::Stuck { .. }
            | Condition::Above { hold: Some(_), .. }
            | Condition::Below { hold: Some(_), .. } => (1, 1 + 64),
            _ => (1, 1),
        };
        assert_eq!((store.rounds, store.loaded), (rounds, expected), "{:?}", rule.condition);
        // A flagged reading needs nothing.
        store.store(rules, PageSizes::default(), [(1_000_013_000, 5.0, "Cel", false)]);
        assert_eq!((store.rounds, store.loaded), (rounds + 1, expected), "{:?}", rule.condition);
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
        // The readings of the time before it, and those whose time it is in.
        let (rounds, most) =
            if let Condition::Consumption { .. } = rule.condition { (10, 10_000) } else { (5, 300) };
        assert!(store.rounds <= rounds && store.loaded < most, "{} {} {rule:?}", store.rounds, store.loaded);
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
            (0..10_000).map(|n| (n * 10_000, (n % 8) as f64, "Cel", true)),
        );
        (store.rounds, store.loaded) = (0, 0);
        store.store(rules, PageSizes::default(), (0..50).map(|n| (n * 2_000_000 + 5_000, 4.5, "Cel", true)));
        assert_eq!(store.intervals(0), reference(&rule, &store.points(&rule)));
        // A rate within an alarm needs the readings of `per` before it.
        let expected = match rule.condition {
            Condition::RateOfChange { .. } | Condition::Consumption { .. } => 300,
            _ => 6,
        };
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
    assert_eq!(found, find_excursions(&above.condition, None, &store.points(&above)));
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
