//! Finds the intervals in which readings violate a condition.

use super::condition::{Condition, Micros, Point};

/// Readings before a new one that are evaluated with it, at most. So many equal readings in a row are stuck
/// even if they took less time than the condition asks for.
pub const MAX_LOOKBACK_READINGS: usize = 4096;

/// Equal readings in a row that are needed to be stuck. Two may be equal by chance.
const MIN_STUCK_READINGS: usize = 3;

/// An interval of readings that violate a condition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excursion {
    /// The time of the first violating reading.
    pub since: Micros,
    /// The time of the last violating reading.
    pub upto: Micros,
    /// The time of the reading that ended it; none while it lasts.
    pub ended: Option<Micros>,
    /// The value of the first violating reading.
    pub value: f64,
}

/// Returns the excursions in points that are ordered by time. [`Condition::Silent`] has none.
///
/// `open_at_start` states whether the first point lies within an excursion that began before it. It decides
/// on values between `limit` and `clear`.
pub fn find_excursions(condition: &Condition, points: &[Point], open_at_start: bool) -> Vec<Excursion> {
    match *condition {
        Condition::Above { limit, clear } => {
            join(points, 0, hysteresis(points, open_at_start, move |v| v > limit, move |v| v <= clear))
        }
        Condition::Below { limit, clear } => {
            join(points, 0, hysteresis(points, open_at_start, move |v| v < limit, move |v| v >= clear))
        }
        Condition::RateOfChange { limit, per } => join(points, per, fast_changes(points, limit, per)),
        Condition::Stuck { duration } => join(points, 0, stuck(points, duration)),
        Condition::Silent { .. } => Vec::new(),
    }
}

/// For each point, whether the alarm is on: set by `raises`, reset by `clears`, else as at the point before.
fn hysteresis(
    points: &[Point],
    open_at_start: bool,
    raises: impl Fn(f64) -> bool,
    clears: impl Fn(f64) -> bool,
) -> impl Iterator<Item = bool> {
    let mut on = open_at_start;
    points.iter().map(move |point| {
        on = raises(point.value) || (on && !clears(point.value));
        on
    })
}

/// For each point, whether it differs by more than `limit` per `per` from the newest point that is at least a
/// hundredth of `per` older. The noise of two closer readings would give an arbitrarily high rate.
fn fast_changes(points: &[Point], limit: f64, per: Micros) -> impl Iterator<Item = bool> {
    let mut reference = 0;
    points.iter().enumerate().map(move |(index, point)| {
        let is_far_enough = |other: &Point| point.at - other.at >= per / 100;
        while reference + 1 < index && is_far_enough(&points[reference + 1]) {
            reference += 1;
        }
        let other = &points[reference];
        reference < index && is_far_enough(other) && {
            let share = (point.at - other.at) as f64 / per as f64;
            (point.value - other.value).abs() > limit * share
        }
    })
}

/// For each point, whether the value has been exactly the same for `duration`.
fn stuck(points: &[Point], duration: Micros) -> impl Iterator<Item = bool> {
    let mut first_equal = 0;
    points.iter().enumerate().map(move |(index, point)| {
        if points[first_equal].value != point.value {
            first_equal = index;
        }
        let count = index - first_equal + 1;
        count >= MAX_LOOKBACK_READINGS
            || (count >= MIN_STUCK_READINGS && point.at - points[first_equal].at >= duration)
    })
}

/// Joins violating points into excursions. Points that do not violate end one only after `hold` since the last
/// violating point.
fn join(points: &[Point], hold: Micros, violates: impl Iterator<Item = bool>) -> Vec<Excursion> {
    let mut excursions: Vec<Excursion> = Vec::new();
    for (&Point { at, value }, violates) in points.iter().zip(violates) {
        match excursions.last_mut().filter(|last| last.ended.is_none()) {
            Some(last) if violates => last.upto = at,
            Some(last) if at - last.upto >= hold => last.ended = Some(at),
            None if violates => excursions.push(Excursion { since: at, upto: at, ended: None, value }),
            _ => {}
        }
    }
    excursions
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;

    fn seconds(condition: Condition, values: &[f64]) -> Vec<(i64, i64, Option<i64>)> {
        let points: Vec<_> =
            (0..).zip(values).map(|(n, value)| Point { at: n * SECOND, value: *value }).collect();
        let in_seconds = |e: Excursion| (e.since / SECOND, e.upto / SECOND, e.ended.map(|at| at / SECOND));
        find_excursions(&condition, &points, false).into_iter().map(in_seconds).collect()
    }

    #[test]
    fn hysteresis_keeps_a_value_at_the_limit_from_flapping() {
        let above = Condition::Above { limit: 10.0, clear: 8.0 };
        assert_eq!(
            seconds(above, &[9.0, 11.0, 9.0, 10.5, 8.5, 8.0, 9.9, 12.0]),
            [(1, 4, Some(5)), (7, 7, None)]
        );
        let below = Condition::Below { limit: 0.0, clear: 0.0 };
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
        let points =
            [Point { at: 0, value: 0.0 }, Point { at: 1000, value: 1.0 }, Point { at: SECOND, value: 0.5 }];
        assert_eq!(find_excursions(&fast, &points, false), []);
    }

    #[test]
    fn equal_values_for_the_duration_are_stuck() {
        let stuck = Condition::Stuck { duration: 3 * SECOND };
        assert_eq!(seconds(stuck, &[1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0]), [(4, 5, Some(6))]);
        // Two equal readings are too few.
        let far = [Point { at: 0, value: 1.0 }, Point { at: 99 * SECOND, value: 1.0 }];
        assert_eq!(find_excursions(&stuck, &far, false), []);
    }
}
