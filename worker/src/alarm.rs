//! Alarms: what stored readings are watched for, by rules from a TOML file.
//!
//! ```toml
//! [[rule]]
//! name    = "too-hot"          # unique; names the alarm
//! device  = "greenhouse-*"     # a name, or its beginning and a star; every device when left out
//! metric  = "temperature"
//! unit    = "Cel"              # readings are converted to it; as stored when left out
//! above   = 35.0               # raised by a higher value
//! clear   = 33.0               # over again at this value or a lower one; `above` itself when left out
//! webhook = "ops"              # where the alert goes: a webhook of the settings; `default` when left out
//!
//! # Instead of above: one of
//! # below = 2.0                         and clear, at or above which it is over
//! # faster_than = 5.0, per = "10m"      changes faster than 5 units in 10 minutes
//! # stuck_for = "30m"                   the same value, to the last digit, for so long
//! # silent_for = "10m"                  no reading stored for so long
//! ```
//!
//! [`rules`] reads that, [`judge`] says which readings are beyond a rule, [`reconcile`] what that means for
//! the alarms there are. All of it is a function of the readings in order of their time: it does not
//! matter which worker got which of them, in what order, or how often.

pub(crate) mod judge;
pub(crate) mod reconcile;
pub(crate) mod rules;

pub use rules::{BadRules, Rules};

use std::time::Duration;

use garenne_protocol::sensor::{Timestamp, Unit};

use crate::builtin::reading::Stored;
use rules::{Condition, Rule};

/// What a rule raises in a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Raised {
    /// The rule's name.
    pub rule: String,
    /// The first reading beyond it; for silence, the last one before it.
    pub since: Timestamp,
    /// The last reading beyond it; for silence, the first one after it.
    pub upto: Timestamp,
}

impl Rules {
    /// What these rules raise in a recording of one device's metric, ordered by time: for trying rules
    /// out, and for drawing them.
    pub fn in_recording(&self, device: &str, metric: &str, readings: &[Stored]) -> Vec<Raised> {
        let point = |stored: &Stored| (stored.time.as_micros(), stored.value, stored.unit);
        let all: Vec<_> = readings.iter().map(point).collect();
        let usable: Vec<_> = readings.iter().filter(|stored| stored.quality.is_usable()).map(point).collect();
        // A value that says nothing is a sign of life.
        let seen = |rule: &Rule| match rule.condition {
            Condition::Silent { .. } => rule.in_recording(&all),
            _ => rule.in_recording(&usable),
        };
        self.of(device, metric).flat_map(seen).collect()
    }
}

impl Rule {
    /// The readings whose unit converts to the rule's.
    pub(crate) fn points(&self, stored: &[(Micros, f64, Option<Unit>)]) -> Vec<Point> {
        let point = |(at, value, unit): &(Micros, f64, Option<Unit>)| {
            let value = match (unit, self.unit) {
                (Some(from), Some(to)) => from.convert(*value, to).ok()?,
                _ => *value,
            };
            Some(Point { at: *at, value })
        };
        stored.iter().filter_map(point).collect()
    }

    fn in_recording(&self, readings: &[(Micros, f64, Option<Unit>)]) -> Vec<Raised> {
        let points = self.points(readings);
        let stretches: Vec<(Micros, Micros)> = match self.condition {
            Condition::Silent { span } => {
                let silent =
                    |gap: &&[Point]| Duration::from_micros((gap[1].at - gap[0].at).unsigned_abs()) >= span;
                points.windows(2).filter(silent).map(|gap| (gap[0].at, gap[1].at)).collect()
            }
            _ => {
                judge::excursions(&self.condition, &points, false).iter().map(|e| (e.since, e.upto)).collect()
            }
        };
        let time = |at| Timestamp::from_micros(at).ok();
        let raised =
            |(since, upto)| Some(Raised { rule: self.name.clone(), since: time(since)?, upto: time(upto)? });
        stretches.into_iter().filter_map(raised).collect()
    }
}

/// Microseconds since 1970, as readings are keyed.
pub(crate) type Micros = i64;

/// A reading as rules see it, in the rule's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) at: Micros,
    pub(crate) value: f64,
}
