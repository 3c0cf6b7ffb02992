//! Which stretches of readings are beyond a rule.

use super::{Micros, Point, rules::Condition};

/// As many equal readings in a row are stuck however little time they took; no more are looked back at.
pub(crate) const MOST_LOOKED_BACK: usize = 4096;

/// Readings of one stuck value at least.
const FEWEST_STUCK: usize = 3;

/// A stretch of readings beyond a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Excursion {
    /// The first reading beyond it.
    pub(crate) since: Micros,
    /// The last one so far.
    pub(crate) upto: Micros,
    /// The reading with which it was over.
    pub(crate) ended: Option<Micros>,
    /// The value of the first reading.
    pub(crate) value: f64,
}

/// The excursions in readings that are ordered by time. `within`: whether the first of them is in the
/// middle of one, which decides where hysteresis leaves it open.
pub(crate) fn excursions(condition: &Condition, points: &[Point], within: bool) -> Vec<Excursion> {
    match *condition {
        Condition::Above { limit, clear } => {
            runs(points, 0, threshold(points, within, move |v| v > limit, move |v| v <= clear))
        }
        Condition::Below { limit, clear } => {
            runs(points, 0, threshold(points, within, move |v| v < limit, move |v| v >= clear))
        }
        Condition::Faster { limit, per } => runs(points, per, fast(points, limit, per)),
        Condition::Stuck { span } => runs(points, 0, stuck(points, span)),
        Condition::Silent { .. } => Vec::new(),
    }
}

fn threshold(
    points: &[Point],
    within: bool,
    begins: impl Fn(f64) -> bool,
    ends: impl Fn(f64) -> bool,
) -> impl Iterator<Item = bool> {
    let mut on = within;
    points.iter().map(move |point| {
        on = begins(point.value) || (on && !ends(point.value));
        on
    })
}

/// Compared with the newest reading that is at least a hundredth of `per` older: the noise of two
/// readings a moment apart would be any rate at all.
fn fast(points: &[Point], limit: f64, per: Micros) -> impl Iterator<Item = bool> {
    let mut before = 0;
    points.iter().enumerate().map(move |(place, point)| {
        let far_enough = |other: &Point| point.at - other.at >= per / 100;
        while before + 1 < place && far_enough(&points[before + 1]) {
            before += 1;
        }
        let other = &points[before];
        before < place && far_enough(other) && {
            let share = (point.at - other.at) as f64 / per as f64;
            (point.value - other.value).abs() > limit * share
        }
    })
}

fn stuck(points: &[Point], span: Micros) -> impl Iterator<Item = bool> {
    let mut begin = 0;
    points.iter().enumerate().map(move |(place, point)| {
        if points[begin].value != point.value {
            begin = place;
        }
        let count = place - begin + 1;
        count >= MOST_LOOKED_BACK || (count >= FEWEST_STUCK && point.at - points[begin].at >= span)
    })
}

/// Joins what is beyond, also over gaps shorter than `hold`.
fn runs(points: &[Point], hold: Micros, beyond: impl Iterator<Item = bool>) -> Vec<Excursion> {
    let mut found: Vec<Excursion> = Vec::new();
    let mut open = false;
    for (point, beyond) in points.iter().zip(beyond) {
        match found.last_mut().filter(|_| open) {
            Some(last) if beyond => last.upto = point.at,
            Some(last) if point.at - last.upto >= hold => {
                last.ended = Some(point.at);
                open = false;
            }
            None if beyond => {
                found.push(Excursion { since: point.at, upto: point.at, ended: None, value: point.value });
                open = true;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;

    fn found(condition: Condition, values: &[f64]) -> Vec<(i64, i64, Option<i64>)> {
        let points: Vec<_> =
            (0..).zip(values).map(|(n, value)| Point { at: n * SECOND, value: *value }).collect();
        let seconds = |e: Excursion| (e.since / SECOND, e.upto / SECOND, e.ended.map(|at| at / SECOND));
        excursions(&condition, &points, false).into_iter().map(seconds).collect()
    }

    #[test]
    fn hysteresis_keeps_a_value_at_the_limit_from_flapping() {
        let above = Condition::Above { limit: 10.0, clear: 8.0 };
        assert_eq!(
            found(above, &[9.0, 11.0, 9.0, 10.5, 8.5, 8.0, 9.9, 12.0]),
            [(1, 4, Some(5)), (7, 7, None)]
        );
        let below = Condition::Below { limit: 0.0, clear: 0.0 };
        assert_eq!(found(below, &[0.0, -1.0, 0.0, -0.1]), [(1, 1, Some(2)), (3, 3, None)]);
    }

    #[test]
    fn a_change_counts_by_its_time_both_ways() {
        let fast = Condition::Faster { limit: 6.0, per: 4 * SECOND };
        assert_eq!(
            found(fast, &[0.0, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0, 5.0, 2.0]),
            [(3, 3, Some(7)), (8, 8, None)]
        );
        // Two readings of almost the same moment differ by noise, not by a change.
        let points =
            [Point { at: 0, value: 0.0 }, Point { at: 1000, value: 1.0 }, Point { at: SECOND, value: 0.5 }];
        assert_eq!(excursions(&fast, &points, false), []);
    }

    #[test]
    fn the_same_value_for_long_enough_is_stuck() {
        let stuck = Condition::Stuck { span: 3 * SECOND };
        assert_eq!(found(stuck, &[1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0]), [(4, 5, Some(6))]);
        // Two readings far apart may be equal by chance.
        let far = [Point { at: 0, value: 1.0 }, Point { at: 99 * SECOND, value: 1.0 }];
        assert_eq!(excursions(&stuck, &far, false), []);
    }
}
