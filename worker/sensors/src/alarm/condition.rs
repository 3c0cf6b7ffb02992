//! The condition of a rule, and readings as rules evaluate them.

use std::time::Duration;

use garenne_protocol::sensor::Unit;

/// Microseconds: a time since the Unix epoch, or a duration.
pub type Micros = i64;

/// A stored reading in the unit in which it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The time since the Unix epoch.
    pub at: Micros,
    /// The value, in `unit`.
    pub value: f64,
    /// The unit, if known.
    pub unit: Option<Unit>,
}

/// A reading in the unit of the rule that evaluates it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The time since the Unix epoch.
    pub at: Micros,
    /// The value, in the rule's unit.
    pub value: f64,
}

/// The condition under which readings, or their absence, raise an alarm.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Condition {
    /// Raised by a value above `limit`, cleared by one at or below `clear`; `clear <= limit`.
    Above {
        /// The highest value that raises nothing.
        limit: f64,
        /// The highest value that clears the alarm.
        clear: f64,
    },
    /// Raised by a value below `limit`, cleared by one at or above `clear`; `clear >= limit`.
    Below {
        /// The lowest value that raises nothing.
        limit: f64,
        /// The lowest value that clears the alarm.
        clear: f64,
    },
    /// Raised by a change of more than `limit` within `per`, in either direction.
    RateOfChange {
        /// The largest change within `per` that raises nothing; 0 or more.
        limit: f64,
        /// The time to which `limit` refers.
        per: Micros,
    },
    /// Raised by values that are exactly equal for `duration`.
    Stuck {
        /// The time from the first to the last equal reading.
        duration: Micros,
    },
    /// Raised if no reading is stored for `duration`.
    Silent {
        /// The time since the newest reading was stored.
        duration: Duration,
    },
}

impl Condition {
    /// How far before a new reading older readings affect its evaluation, beyond the last few. Twice the
    /// condition's duration, so that an interval that was evaluated before is evaluated with the same result.
    pub fn lookback(&self) -> Micros {
        match self {
            Self::Above { .. } | Self::Below { .. } | Self::Silent { .. } => 0,
            Self::RateOfChange { per: duration, .. } | Self::Stuck { duration } => 2 * duration,
        }
    }

    /// The condition in words, as alerts state it.
    pub fn describe(&self) -> String {
        let shown =
            |micros: &Micros| humantime::format_duration(Duration::from_micros(micros.unsigned_abs()));
        match self {
            Self::Above { limit, .. } => format!("above {limit}"),
            Self::Below { limit, .. } => format!("below {limit}"),
            Self::RateOfChange { limit, per } => format!("changes by more than {limit} in {}", shown(per)),
            Self::Stuck { duration } => format!("has not changed for {}", shown(duration)),
            Self::Silent { duration } => format!("silent for {}", humantime::format_duration(*duration)),
        }
    }
}
