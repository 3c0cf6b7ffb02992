//! Cumulative counters: what was consumed between two readings of a meter.
//!
//! The rule exists twice: here for alarm rules, and in SQL (`<prefix>_counter_step`) for rollups and readers. A scenario
//! compares both.

use serde::{Deserialize, Serialize};

use super::{BadField, Fault, Timestamp, Unit};

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

    /// Refuses limits that are not positive.
    ///
    /// # Errors
    /// [`Fault::OutOfRange`], with the limit.
    pub fn check(&self) -> Result<(), BadField> {
        match self.problem() {
            Some((field, message)) => Err(Fault::OutOfRange.in_field(field, message)),
            None => Ok(()),
        }
    }

    /// Refuses limits of a file that are not positive, or without `counter = true` beside them.
    ///
    /// # Errors
    /// The limit, and what is allowed.
    pub fn check_in_file(&self, is_counter: Option<bool>) -> Result<(), String> {
        if is_counter != Some(true) && *self != Self::default() {
            return Err("wraps_at and max_per_hour: only allowed with counter = true".to_owned());
        }
        let name = |field: &'static str| field.trim_start_matches("counter.");
        self.problem().map_or(Ok(()), |(field, message)| Err(format!("{}: {message}", name(field))))
    }

    /// The first limit that is not positive, and what is allowed.
    fn problem(&self) -> Option<(&'static str, String)> {
        [(WRAPS_AT, self.wraps_at), (MAX_PER_HOUR, self.max_per_hour)].into_iter().find_map(
            |(field, limit)| {
                let limit = limit.filter(|limit| !(limit.is_finite() && *limit > 0.0))?;
                Some((field, format!("{limit}; expected a finite number above 0")))
            },
        )
    }

    /// The consumption from a reading to the next one, 0 or more. Both readings are usable, in one unit, and not at zero,
    /// unless they have start times.
    ///
    /// If both have start times, these decide whether the counter restarted at zero. Otherwise a lower value is a wrap or a
    /// restart. It is a wrap if `wraps_at` is set and the step across it is within `max_per_hour`, or, without that bound, at
    /// most half of `wraps_at`.
    pub fn step(&self, earlier: Count, later: Count) -> f64 {
        let (base, value) = (earlier.value, later.value);
        if value.abs() > MAX || base.abs() > MAX {
            return 0.0;
        }
        let hours = later.at.saturating_sub(earlier.at) as f64 / HOUR;
        let most = self.max_per_hour.map(|most| most * hours * ROUNDING);
        let across = self.wraps_at.map(|wraps_at| value + wraps_at - base);
        let has_restarted = earlier.start.zip(later.start).map(|(base, start)| base != start);
        let step = match across {
            // A sender that does not know when the counter was at zero sends the time of its first reading.
            _ if has_restarted == Some(true) && later.start >= Some(later.at) => 0.0,
            _ if has_restarted == Some(true) => value,
            _ if value >= base => value - base,
            Some(across) if across >= 0.0 && across <= most.unwrap_or(self.wraps_at.unwrap_or(0.0) / 2.0) => {
                across
            }
            _ if has_restarted == Some(false) => 0.0,
            _ => value,
        };
        if step < 0.0 || most.is_some_and(|most| step > most) { 0.0 } else { step }
    }
}

/// A step at the bound may be a little above it, because doubles are rounded.
const ROUNDING: f64 = 1.0 + 1e-9;

/// A reading of a counter. Times are in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    /// The time of the reading.
    pub at: i64,
    /// The value.
    pub value: f64,
    /// When the counter was at zero, if the sender says so.
    pub start: Option<i64>,
}

/// The name of [`SentCounter::wraps_at`] in errors.
pub(super) const WRAPS_AT: &str = "counter.wraps_at";
/// The name of [`SentCounter::max_per_hour`] in errors.
pub(super) const MAX_PER_HOUR: &str = "counter.max_per_hour";

/// What a reading says of the cumulative counter that it is of. Numbers are in the unit of the reading's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SentCounter {
    /// The value at which the counter begins again at zero; absent if it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemas", schemars(extend("exclusiveMinimum" = 0)))]
    pub wraps_at: Option<f64>,
    /// The highest consumption of an hour; absent if it is not bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemas", schemars(extend("exclusiveMinimum" = 0)))]
    pub max_per_hour: Option<f64>,
    /// When the counter was at zero. Another time than that of the reading before means that it restarted, and the same
    /// time that it did not. Absent if the values decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Timestamp>,
}

impl SentCounter {
    /// The part that is the same for all readings.
    pub fn counter(&self) -> Counter {
        Counter { wraps_at: self.wraps_at, max_per_hour: self.max_per_hour }
    }
}

impl From<Counter> for SentCounter {
    fn from(Counter { wraps_at, max_per_hour }: Counter) -> Self {
        Self { wraps_at, max_per_hour, start: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The consumption of readings that are an hour apart.
    fn consumption(counter: Counter, values: &[f64]) -> f64 {
        let at = |hour: usize| hour as i64 * 3_600_000_000;
        let steps = values.windows(2).enumerate();
        let count = |hour, value| Count { at: at(hour), value, start: None };
        steps.map(|(hour, pair)| counter.step(count(hour, pair[0]), count(hour + 1, pair[1]))).sum()
    }

    #[test]
    fn start_times_decide_whether_a_counter_restarted() {
        let step = |counter: Counter, (base, base_start), (value, start)| {
            let at = |hour: i64| hour * 3_600_000_000;
            let count = |hour, value, start: Option<i64>| Count { at: at(hour), value, start: start.map(at) };
            counter.step(count(10, base, base_start), count(11, value, start))
        };
        let any = Counter::default();
        for (base, reading, consumed) in [
            ((10.0, Some(0)), (12.0, Some(0)), 2.0),
            // Restarted, and already higher than before.
            ((10.0, Some(0)), (12.0, Some(10)), 12.0),
            ((10.0, Some(0)), (7.0, Some(10)), 7.0),
            ((10.0, Some(0)), (0.0, Some(10)), 0.0),
            // The sender began to observe a counter that was running.
            ((10.0, Some(0)), (1000.0, Some(11)), 0.0),
            // Lower without a restart is a wrong value.
            ((10.0, Some(0)), (7.0, Some(0)), 0.0),
            // If one of the times is missing, the values decide.
            ((10.0, None), (12.0, Some(10)), 2.0),
            ((10.0, Some(0)), (7.0, None), 7.0),
        ] {
            assert_eq!(step(any, base, reading), consumed, "{base:?} {reading:?}");
        }
        let narrow = Counter { wraps_at: Some(65_536.0), max_per_hour: Some(20.0) };
        assert_eq!(step(narrow, (65_530.0, Some(0)), (4.0, Some(0))), 10.0);
        assert_eq!(step(narrow, (65_530.0, Some(0)), (4.0, Some(10))), 4.0);
        assert_eq!(step(narrow, (10.0, Some(0)), (30.0, Some(10))), 0.0);
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
