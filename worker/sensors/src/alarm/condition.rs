//! The condition of a rule.

use std::time::Duration;

use super::point::Micros;

/// The range of `per`, `stuck_for` and `silent_for`. The retry ladder cannot wait for less than a second.
const DURATIONS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 3600);

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

/// The fields of a rule's entry that make up its condition.
#[derive(Default)]
pub(super) struct ConditionFields {
    pub(super) above: Option<f64>,
    pub(super) below: Option<f64>,
    pub(super) clear: Option<f64>,
    pub(super) faster_than: Option<f64>,
    pub(super) per: Option<Duration>,
    pub(super) stuck_for: Option<Duration>,
    pub(super) silent_for: Option<Duration>,
}

impl ConditionFields {
    /// # Errors
    /// Names the field, its value and the allowed values.
    pub(super) fn validate(self) -> Result<Condition, String> {
        let Self { above, below, clear, faster_than, per, stuck_for, silent_for } = self;
        if clear.is_some() && above.is_none() && below.is_none() {
            return Err("clear: only allowed with above or below".to_owned());
        }
        if per.is_some() && faster_than.is_none() {
            return Err("per: only allowed with faster_than".to_owned());
        }
        match (above, below, faster_than, stuck_for, silent_for) {
            (Some(limit), None, None, None, None) => {
                let (limit, clear) = (finite("above", limit)?, finite("clear", clear.unwrap_or(limit))?);
                if clear > limit {
                    return Err(format!("clear: {clear} is greater than above ({limit})"));
                }
                Ok(Condition::Above { limit, clear })
            }
            (None, Some(limit), None, None, None) => {
                let (limit, clear) = (finite("below", limit)?, finite("clear", clear.unwrap_or(limit))?);
                if clear < limit {
                    return Err(format!("clear: {clear} is less than below ({limit})"));
                }
                Ok(Condition::Below { limit, clear })
            }
            (None, None, Some(limit), None, None) => {
                let limit = finite("faster_than", limit)?;
                if limit < 0.0 {
                    return Err(format!(
                        "faster_than: {limit}; expected 0 or more, rises and falls both count"
                    ));
                }
                let per = per.ok_or("faster_than: per is missing, such as per = \"10m\"")?;
                Ok(Condition::RateOfChange { limit, per: micros("per", per)? })
            }
            (None, None, None, Some(duration), None) => {
                Ok(Condition::Stuck { duration: micros("stuck_for", duration)? })
            }
            (None, None, None, None, Some(duration)) => {
                micros("silent_for", duration)?;
                Ok(Condition::Silent { duration })
            }
            _ => {
                let given = [above.is_some(), below.is_some(), faster_than.is_some()];
                let given = given.into_iter().chain([stuck_for.is_some(), silent_for.is_some()]);
                Err(format!(
                    "{} conditions; expected exactly one of above, below, faster_than, stuck_for and silent_for",
                    given.filter(|given| *given).count()
                ))
            }
        }
    }
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

fn finite(name: &str, value: f64) -> Result<f64, String> {
    if value.is_finite() { Ok(value) } else { Err(format!("{name}: {value} is not a finite number")) }
}

fn micros(name: &str, duration: Duration) -> Result<Micros, String> {
    if DURATIONS.contains(&duration) {
        Ok(i64::try_from(duration.as_micros()).expect("30 days fit into 64 bits"))
    } else {
        Err(format!("{name}: {duration:?}; expected 1 second to 30 days"))
    }
}
