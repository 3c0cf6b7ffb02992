use super::*;

const SECOND: Micros = 1_000_000;

fn seconds(condition: Condition, values: &[f64]) -> Vec<(i64, i64, Option<i64>)> {
    let points: Vec<_> = (0..)
        .zip(values)
        .map(|(n, value)| Point { at: n * SECOND, value: *value, start: None, zero: None })
        .collect();
    let in_seconds = |e: Excursion| (e.since / SECOND, e.upto / SECOND, e.ended.map(|at| at / SECOND));
    find_excursions(&condition, None, &points).into_iter().map(in_seconds).collect()
}

#[test]
fn hysteresis_keeps_a_value_at_the_limit_from_flapping() {
    let above = Condition::Above { limit: 10.0, clear: 8.0, hold: None };
    assert_eq!(seconds(above, &[9.0, 11.0, 9.0, 10.5, 8.5, 8.0, 9.9, 12.0]), [(1, 4, Some(5)), (7, 7, None)]);
    let below = Condition::Below { limit: 0.0, clear: 0.0, hold: None };
    assert_eq!(seconds(below, &[0.0, -1.0, 0.0, -0.1]), [(1, 1, Some(2)), (3, 3, None)]);
}

#[test]
fn rate_of_change_is_scaled_by_time_and_counts_rises_and_falls() {
    let fast = Condition::RateOfChange { limit: 6.0, per: 4 * SECOND };
    assert_eq!(
        seconds(fast, &[0.0, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0, 5.0, 2.0]),
        [(3, 3, Some(7)), (8, 8, None)]
    );
    // Readings closer than a hundredth of `per` are not compared.
    let points = [
        Point { at: 0, value: 0.0, start: None, zero: None },
        Point { at: 1000, value: 1.0, start: None, zero: None },
        Point { at: SECOND, value: 0.5, start: None, zero: None },
    ];
    assert_eq!(find_excursions(&fast, None, &points), []);
}

#[test]
fn equal_values_for_the_duration_are_stuck() {
    let stuck = Condition::Stuck { duration: 3 * SECOND, readings: 4096 };
    assert_eq!(seconds(stuck, &[1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0]), [(4, 5, Some(6))]);
    // Two equal readings are too few.
    let far = [
        Point { at: 0, value: 1.0, start: None, zero: None },
        Point { at: 99 * SECOND, value: 1.0, start: None, zero: None },
    ];
    assert_eq!(find_excursions(&stuck, None, &far), []);
    // So many equal readings are stuck in less time.
    let many = Condition::Stuck { duration: 99 * SECOND, readings: 4 };
    assert_eq!(seconds(many, &[2.0, 2.0, 2.0, 2.0, 2.0, 3.0]), [(3, 4, Some(5))]);
}

#[test]
fn a_value_beyond_the_limit_for_the_duration_raises_an_alarm() {
    let hold = Some(Hold { duration: 3 * SECOND, readings: 65_536 });
    let above = Condition::Above { limit: 10.0, clear: 8.0, hold };
    // Two seconds, then one value at the limit, then three seconds. Once raised, it lasts until `clear`.
    let values = [11.0, 12.0, 13.0, 10.0, 11.0, 12.0, 13.0, 14.0, 9.0, 11.0, 8.0, 11.0];
    assert_eq!(seconds(above, &values), [(7, 9, Some(10))]);
    // The time from the first to the last reading counts, not the number of readings.
    let far = [
        Point { at: 0, value: 11.0, start: None, zero: None },
        Point { at: 3 * SECOND, value: 11.0, start: None, zero: None },
    ];
    assert_eq!(find_excursions(&above, None, &far).len(), 1);
    assert_eq!(find_excursions(&above, None, &far[1..]), []);
    let below = Condition::Below { limit: 10.0, clear: 10.0, hold };
    assert_eq!(seconds(below, &[9.0, 9.0, 9.0, 9.0, 11.0]), [(3, 3, Some(4))]);
    // So many readings suffice in less time.
    let many =
        Condition::Above { limit: 0.0, clear: 0.0, hold: Some(Hold { duration: 99 * SECOND, readings: 3 }) };
    assert_eq!(seconds(many, &[1.0, 2.0, 1.0, 0.0]), [(2, 2, Some(3))]);
}
