//! Evaluates rules over a recording, without a store.

use std::time::Duration;

use garenne_protocol::sensor::Timestamp;

use super::{
    condition::Condition,
    excursion::find_excursions,
    point::{Micros, Point, Sample},
    rules::{Rule, Rules},
};
use crate::reading::StoredReading;

/// An alarm that a rule raises in a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct RaisedAlarm {
    /// The rule's name.
    pub rule: String,
    /// The first reading that violates the rule; for silence, the last one before it.
    pub since: Timestamp,
    /// The last reading that violates the rule; for silence, the first one after it.
    pub upto: Timestamp,
}

impl Rules {
    /// The alarms that these rules raise in a recording of one device's metric, ordered by time. Serves to
    /// try rules out and to draw their alarms.
    pub fn evaluate(&self, device: &str, metric: &str, readings: &[StoredReading]) -> Vec<RaisedAlarm> {
        let sample = |stored: &StoredReading| Sample {
            at: stored.time.as_micros(),
            value: stored.value,
            unit: stored.unit,
        };
        let all: Vec<_> = readings.iter().map(sample).collect();
        let usable: Vec<_> =
            readings.iter().filter(|stored| stored.quality.is_usable()).map(sample).collect();
        let evaluate = |rule: &Rule| match rule.condition {
            // A device that sends unusable values is not silent.
            Condition::Silent { .. } => rule.evaluate(&all),
            _ => rule.evaluate(&usable),
        };
        self.matching(device, metric).flat_map(evaluate).collect()
    }
}

impl Rule {
    fn evaluate(&self, samples: &[Sample]) -> Vec<RaisedAlarm> {
        let points = self.convert(samples);
        let intervals = match self.condition {
            Condition::Silent { duration } => gaps(&points, duration),
            _ => find_excursions(&self.condition, &points, false).iter().map(|e| (e.since, e.upto)).collect(),
        };
        let time = |at| Timestamp::from_micros(at).ok();
        let raised = |(since, upto)| {
            Some(RaisedAlarm { rule: self.name.clone(), since: time(since)?, upto: time(upto)? })
        };
        intervals.into_iter().filter_map(raised).collect()
    }
}

/// The intervals between consecutive points that are at least `shortest` apart.
fn gaps(points: &[Point], shortest: Duration) -> Vec<(Micros, Micros)> {
    let is_gap =
        |(since, upto): &(Micros, Micros)| Duration::from_micros((upto - since).unsigned_abs()) >= shortest;
    points.windows(2).map(|pair| (pair[0].at, pair[1].at)).filter(is_gap).collect()
}
