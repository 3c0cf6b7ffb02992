//! Examples of orders of arrival, and what is told of them.

mod histories;
mod loads;
mod reference;
mod rules;
mod store;

use crate::alarm::{AlarmEvent, Condition, Excursion, Micros, PageSizes, Rule};
use rules::rule;
use store::Store;

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
