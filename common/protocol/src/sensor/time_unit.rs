//! Units of Unix times, and which of them a number is probably in.

use strum::Display;

use super::timestamp::Timestamp;

/// The unit of a Unix time that is sent as a whole number.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[strum(serialize_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum TimeUnit {
    Nanoseconds,
    Microseconds,
    Milliseconds,
    Seconds,
    Minutes,
    Hours,
}

impl TimeUnit {
    /// The units that clocks count in, the most common one first.
    const OF_CLOCKS: [Self; 4] = [Self::Seconds, Self::Milliseconds, Self::Nanoseconds, Self::Microseconds];

    /// Nanoseconds per tick.
    const fn nanos(self) -> i64 {
        match self {
            Self::Nanoseconds => 1,
            Self::Microseconds => 1_000,
            Self::Milliseconds => 1_000_000,
            Self::Seconds => 1_000_000_000,
            Self::Minutes => 60_000_000_000,
            Self::Hours => 3_600_000_000_000,
        }
    }

    /// The symbol, as InfluxDB's parameter `precision` has it.
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
            Self::Minutes => "m",
            Self::Hours => "h",
        }
    }

    /// The time of so many ticks since 1970, rounded down to microseconds. `None` outside the years 0000 to 9999.
    pub fn time(self, ticks: i64) -> Option<Timestamp> {
        let micros = (i128::from(ticks) * i128::from(self.nanos())).div_euclid(1_000);
        Timestamp::from_micros(i64::try_from(micros).ok()?).ok()
    }

    /// The unit in which `ticks` is a time that `is_plausible` takes. `None` if it is plausible in none.
    pub fn likely(ticks: i64, is_plausible: impl Fn(Timestamp) -> bool) -> Option<Self> {
        Self::OF_CLOCKS.into_iter().find(|unit| unit.time(ticks).is_some_and(&is_plausible))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_time_in_its_unit_and_plausible_in_one() {
        let at = |text: &str| Timestamp::parse(text).unwrap();
        assert_eq!(TimeUnit::Hours.time(1), Some(at("1970-01-01T01:00:00Z")));
        assert_eq!(TimeUnit::Nanoseconds.time(-1), Some(at("1969-12-31T23:59:59.999999Z")));
        assert_eq!(TimeUnit::Seconds.time(i64::MAX), None);
        let recent =
            |time: Timestamp| time >= at("1990-01-01T00:00:00Z") && time < at("2030-01-01T00:00:00Z");
        for (ticks, unit) in [
            (1_711_190_482, Some(TimeUnit::Seconds)),
            (1_711_190_482_000, Some(TimeUnit::Milliseconds)),
            (1_711_190_482_000_000, Some(TimeUnit::Microseconds)),
            (1_711_190_482_000_000_000, Some(TimeUnit::Nanoseconds)),
            (0, None),
            (-1, None),
            (28_519_841, None),
        ] {
            assert_eq!(TimeUnit::likely(ticks, recent), unit, "{ticks}");
        }
        assert_eq!(TimeUnit::Nanoseconds.to_string(), "nanoseconds");
    }
}
