//! Cumulative counters: what was consumed between two readings of a meter.
//!
//! The rule exists twice: here for alarm rules, and in SQL (`<prefix>_counter_step`) for rollups and readers. A scenario
//! compares both.

use serde::{Deserialize, Serialize};

use super::Unit;

/// Microseconds of an hour.
const HOUR: f64 = 3_600_000_000.0;

/// Values beyond it are not counted, so that no difference and no sum overflows.
const MAX: f64 = 1e300;

/// How the readings of a cumulative counter become consumption.
///
/// All numbers are in the unit of the stored value. The JSON form is stored with the series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counter {
    /// The value at which the counter begins again at zero. None if it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wraps_at: Option<f64>,
    /// The highest consumption of an hour. A step beyond it is an exchanged meter or a wrong value, and is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_per_hour: Option<f64>,
}

impl Counter {
    /// The same for values that are converted to another unit. Unchanged if one of the units is not known.
    #[must_use]
    pub fn converted(self, from: Option<Unit>, to: Option<Unit>) -> Self {
        let (Some(from), Some(to)) = (from, to) else { return self };
        let convert = |number: f64| from.convert(number, to).unwrap_or(number);
        Self { wraps_at: self.wraps_at.map(convert), max_per_hour: self.max_per_hour.map(convert) }
    }

    /// The consumption from a reading to the next one, 0 or more. Times are in microseconds. Both readings are usable, in
    /// one unit, and not at zero.
    ///
    /// A lower value is a wrap or a restart at zero. It is a wrap if `wraps_at` is set and the step across it is within
    /// `max_per_hour`, or, without that bound, at most half of `wraps_at`.
    pub fn step(&self, (earlier, base): (i64, f64), (later, value): (i64, f64)) -> f64 {
        if value.abs() > MAX || base.abs() > MAX {
            return 0.0;
        }
        let hours = later.saturating_sub(earlier) as f64 / HOUR;
        let most = self.max_per_hour.map(|most| most * hours);
        let across = self.wraps_at.map(|wraps_at| value + wraps_at - base);
        let step = match across {
            _ if value >= base => value - base,
            Some(across) if across >= 0.0 && across <= most.unwrap_or(self.wraps_at.unwrap_or(0.0) / 2.0) => {
                across
            }
            _ => value,
        };
        if step < 0.0 || most.is_some_and(|most| step > most) { 0.0 } else { step }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The consumption of readings that are an hour apart.
    fn consumption(counter: Counter, values: &[f64]) -> f64 {
        let at = |hour: usize| hour as i64 * 3_600_000_000;
        let steps = values.windows(2).enumerate();
        steps.map(|(hour, pair)| counter.step((at(hour), pair[0]), (at(hour + 1), pair[1]))).sum()
    }

    #[test]
    fn a_lower_value_is_a_restart_at_zero() {
        assert_eq!(consumption(Counter::default(), &[10.0, 20.0, 15.0, 40.0]), 50.0);
        assert_eq!(consumption(Counter::default(), &[7.0, 7.0, 9.5]), 2.5);
        // Without a declared width nothing wraps.
        assert_eq!(consumption(Counter::default(), &[65_530.0, 4.0]), 4.0);
    }

    #[test]
    fn a_counter_of_a_declared_width_wraps() {
        for wraps_at in [65_536.0, 4_294_967_296.0] {
            let counter = Counter { wraps_at: Some(wraps_at), max_per_hour: None };
            assert_eq!(consumption(counter, &[wraps_at - 6.0, 4.0, 10.0]), 16.0);
            // More than half of the width: the meter was exchanged or restarted.
            assert_eq!(consumption(counter, &[100.0, 3.0]), 3.0);
        }
        let bounded = Counter { wraps_at: Some(65_536.0), max_per_hour: Some(50_000.0) };
        assert_eq!(consumption(bounded, &[30_000.0, 4.0]), 35_540.0);
        let narrow = Counter { max_per_hour: Some(20.0), ..bounded };
        assert_eq!(consumption(narrow, &[30_000.0, 4.0]), 4.0);
        assert_eq!(consumption(narrow, &[65_530.0, 4.0]), 10.0);
    }

    #[test]
    fn a_step_is_bounded_by_what_its_time_allows() {
        let counter = Counter { wraps_at: None, max_per_hour: Some(10.0) };
        assert_eq!(consumption(counter, &[100.0, 110.0, 15_508.5, 15_509.0]), 10.5);
        // An exchanged meter that does not begin at zero.
        assert_eq!(consumption(counter, &[15_508.5, 312.0, 313.0]), 1.0);
        assert_eq!(consumption(Counter::default(), &[5.0, -3.0]), 0.0);
        assert_eq!(consumption(Counter::default(), &[-f64::MAX, f64::MAX, 1.0, 2.0]), 1.0);
    }
}
