//! The period in which a rule applies.

use std::fmt;

use garenne_protocol::sensor::Timestamp;
use toml::Value;

/// A half-open period of readings' times. A missing end is unbounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    from: Option<Timestamp>,
    until: Option<Timestamp>,
}

impl Period {
    /// The period of the fields `from` and `until`: texts or TOML's own date-times.
    pub(super) fn parse(from: Option<&Value>, until: Option<&Value>) -> Result<Self, String> {
        let (from, until) = (time("from", from)?, time("until", until)?);
        match (from, until) {
            (Some(from), Some(until)) if from >= until => {
                Err(format!("until: {until} is not after from ({from})"))
            }
            _ => Ok(Self { from, until }),
        }
    }

    /// Whether a time is in the period: `from` is, `until` is not.
    pub fn contains(self, time: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= time) && self.until.is_none_or(|until| time < until)
    }

    /// The period that both have in common, if there is one.
    pub(super) fn overlap(self, other: Self) -> Option<Self> {
        // None is the smallest value of an Option, so it loses against every `from`.
        let from = self.from.max(other.from);
        let until = [self.until, other.until].into_iter().flatten().min();
        let is_empty = matches!((from, until), (Some(from), Some(until)) if from >= until);
        (!is_empty).then_some(Self { from, until })
    }
}

fn time(field: &str, value: Option<&Value>) -> Result<Option<Timestamp>, String> {
    let text = match value {
        None => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Datetime(at)) => at.to_string(),
        Some(other) => other.to_string(),
    };
    Timestamp::parse(&text).map(Some).map_err(|error| format!("{field}: {text}: {error}"))
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from, self.until) {
            (None, None) => f.write_str("at all times"),
            (Some(from), None) => write!(f, "from {from} on"),
            (None, Some(until)) => write!(f, "until {until}"),
            (Some(from), Some(until)) => write!(f, "from {from} until {until}"),
        }
    }
}
