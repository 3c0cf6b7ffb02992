//! The condition of a rule, and readings as rules evaluate them.

use std::time::Duration;

use garenne_protocol::sensor::{Count, Unit};

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
    /// When the counter that the value is of was at zero, if its sender says so.
    pub start: Option<Micros>,
    /// For the first reading of a counter: the time of a zero before it, which is the begin of a new meter.
    pub zero: Option<Micros>,
}

/// A reading in the unit of the rule that evaluates it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The time since the Unix epoch.
    pub at: Micros,
    /// The value, in the rule's unit.
    pub value: f64,
    /// When the counter that the value is of was at zero, if its sender says so.
    pub start: Option<Micros>,
    /// For the first reading of a counter: the time of a zero before it, which is the begin of a new meter.
    pub zero: Option<Micros>,
}

impl Point {
    pub(super) fn count(self) -> Count {
        let Self { at, value, start, .. } = self;
        Count { at, value, start }
    }
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
        /// How long values must be above `limit`; none raises the alarm at once.
        hold: Option<Hold>,
    },
    /// Raised by a value below `limit`, cleared by one at or above `clear`; `clear >= limit`.
    Below {
        /// The lowest value that raises nothing.
        limit: f64,
        /// The lowest value that clears the alarm.
        clear: f64,
        /// How long values must be below `limit`; none raises the alarm at once.
        hold: Option<Hold>,
    },
    /// Raised by a change of more than `limit` within `per`, in either direction. Cleared by the first reading at
    /// least `per` after the last such change.
    RateOfChange {
        /// The largest change within `per` that raises nothing; 0 or more.
        limit: f64,
        /// The time to which `limit` refers.
        per: Micros,
    },
    /// Raised by a consumption of a counter of more than `limit` within `within`. Cleared by the first reading with less.
    Consumption {
        /// The largest consumption that raises nothing; 0 or more.
        limit: f64,
        /// The time to which `limit` refers.
        within: Micros,
    },
    /// Raised by values that are exactly equal for `duration` in three readings or more, or in `readings` readings.
    Stuck {
        /// The time from the first to the last equal reading.
        duration: Micros,
        /// Equal readings in a row that suffice, however little time they took. Bounds the readings before a new
        /// one that are needed to judge it.
        readings: usize,
    },
    /// Raised if no reading is stored for `duration`.
    Silent {
        /// The time since the newest reading was stored.
        duration: Duration,
    },
}

/// How long consecutive readings must be beyond a limit before they raise an alarm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hold {
    /// The time from the first to the last of them.
    pub duration: Micros,
    /// Readings in a row that suffice, however little time they took. Bounds the readings before a new one that are
    /// needed to judge it.
    pub readings: usize,
}

impl Condition {
    /// Whether it must hold for some time before it raises an alarm.
    pub fn has_hold(&self) -> bool {
        self.required_hold().is_some()
    }

    /// How long the condition must hold before it raises an alarm; none at once.
    pub(super) fn required_hold(&self) -> Option<Hold> {
        match self {
            Self::Above { hold, .. } | Self::Below { hold, .. } => *hold,
            Self::RateOfChange { .. }
            | Self::Consumption { .. }
            | Self::Stuck { .. }
            | Self::Silent { .. } => None,
        }
    }

    /// Whether a value is beyond the limit that raises an alarm.
    pub(super) fn is_beyond_limit(&self, value: f64) -> bool {
        match self {
            Self::Above { limit, .. } => value > *limit,
            Self::Below { limit, .. } => value < *limit,
            Self::RateOfChange { .. }
            | Self::Consumption { .. }
            | Self::Stuck { .. }
            | Self::Silent { .. } => false,
        }
    }

    /// The condition in words, as alerts state it.
    pub fn describe(&self) -> String {
        let shown =
            |micros: &Micros| humantime::format_duration(Duration::from_micros(micros.unsigned_abs()));
        let held = |hold: &Option<Hold>| match hold {
            Some(hold) => format!(" for {}", shown(&hold.duration)),
            None => String::new(),
        };
        match self {
            Self::Above { limit, hold, .. } => format!("above {limit}{}", held(hold)),
            Self::Below { limit, hold, .. } => format!("below {limit}{}", held(hold)),
            Self::RateOfChange { limit, per } => format!("changes by more than {limit} in {}", shown(per)),
            Self::Consumption { limit, within } => format!("consumes more than {limit} in {}", shown(within)),
            Self::Stuck { duration, .. } => format!("has not changed for {}", shown(duration)),
            Self::Silent { duration } => format!("silent for {}", humantime::format_duration(*duration)),
        }
    }
}
