//! The expected alarms: all readings judged in order of time, from the definitions in docs/sensor-data.md.

use garenne_protocol::sensor::Counter;

use crate::alarm::{Condition, Excursion, Hold, Point, Rule};

/// Judges all readings in order of time.
pub(super) fn reference(rule: &Rule, points: &[Point]) -> Vec<Excursion> {
    let mut found: Vec<Excursion> = Vec::new();
    for (index, point) in points.iter().enumerate() {
        let before = &points[..index];
        let last = found.last().copied().filter(|last| last.ended.is_none());
        let mut consumed: Option<f64> = None;
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
            Condition::Consumption { limit, within } => {
                let share = |point: &Point| point.at.div_euclid(within / 100);
                let pairs = points[..=index].windows(2).filter(|pair| share(&pair[1]) > share(point) - 100);
                let step = |pair: &[Point]| Counter::default().step(pair[0].count(), pair[1].count());
                consumed = Some(pairs.map(step).sum());
                (consumed > Some(limit), 0)
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
                found.push(Excursion {
                    since: point.at,
                    upto: point.at,
                    ended: None,
                    value: consumed.unwrap_or(point.value),
                });
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
