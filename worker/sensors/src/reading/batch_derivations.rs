//! Derives values from readings in different records of a batch.
//!
//! A gateway makes one task per reading, so temperature and humidity of one sensor message are two tasks. They
//! are records of the same batch, which one worker runs. A value derived from two records belongs to the later
//! one. It depends on the batch only, so a redelivered batch gives the same values.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use bytes::Bytes;
use garenne_protocol::{sensor::Timestamp, task::has_assumed_time};
use garenne_readings::{CalibratedReading, Calibration, derive};

use super::payload::Readings;
use garenne::handler::{ContentType, Payload};

/// A value derived from readings of two records.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JointValue {
    pub(super) value: CalibratedReading,
    /// Metrics and values of the readings.
    pub(super) inputs: [(Arc<str>, f64); 2],
}

/// The values derived from different records of a batch, by the index of the record that they belong to.
#[derive(Debug, Default)]
pub(super) struct BatchDerivations(HashMap<usize, Vec<JointValue>>);

impl BatchDerivations {
    /// Derives values from all records of a batch. Ignores unreadable records, which fail as tasks of their own,
    /// and readings in bodies without a time, which have no common time with others. A gateway gives the readings of one
    /// request one time.
    pub(super) fn derive(bodies: &[(ContentType, Bytes)], calibration: &Calibration) -> Self {
        let mut readings = Vec::new();
        let mut records = Vec::new();
        let mut derived_within: HashSet<(Arc<str>, Arc<str>, Timestamp)> = HashSet::new();
        for (record, (content_type, body)) in bodies.iter().enumerate() {
            let Ok(Readings { records: read, .. }) = Readings::read(*content_type, body) else { continue };
            let first = readings.len();
            let has_time = has_assumed_time(body);
            let timed = read.iter().filter(|reading| has_time || !reading.time_assumed);
            readings.extend(timed.map(|reading| calibration.apply(reading)));
            records.resize(readings.len(), record);
            let values = derive::values(&readings[first..]).into_iter();
            derived_within.extend(values.map(|value| (value.device, value.metric, value.time)));
        }
        let mut derivations = Self::default();
        for derived in derive::values_with_inputs(&readings) {
            let inputs = derived.inputs(&readings);
            let derive::Derived { value, temperature, humidity } = derived;
            let key = (Arc::clone(&value.device), Arc::clone(&value.metric), value.time);
            if records[temperature] == records[humidity] || derived_within.contains(&key) {
                continue;
            }
            let record = records[temperature.max(humidity)];
            derivations.0.entry(record).or_default().push(JointValue { value, inputs });
        }
        derivations
    }

    /// The values that belong to a record.
    pub(super) fn of_record(&self, record: usize) -> &[JointValue] {
        self.0.get(&record).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use garenne_readings::Flag;
    use serde_json::{Value, json};

    use super::*;

    fn reading(metric: &str, value: f64, unit: &str, second: u32) -> Value {
        let time = format!("2026-11-20T07:30:{second:02}Z");
        json!({"device": "a", "metric": metric, "value": value, "unit": unit, "time": time})
    }

    /// Record and metric of each derived value, and what it was derived from.
    fn derived(records: &[Value]) -> Vec<(usize, String, [String; 2])> {
        let body = |record: &Value| (ContentType::Json, Bytes::from(record.to_string()));
        let bodies: Vec<_> = records.iter().map(body).collect();
        let derivations = BatchDerivations::derive(&bodies, &Calibration::default());
        let of_record = |record| derivations.of_record(record).iter().map(move |joint| (record, joint));
        let text = |(record, joint): (usize, &JointValue)| {
            (
                record,
                joint.value.metric.to_string(),
                joint.inputs.clone().map(|(metric, value)| format!("{metric} {value}")),
            )
        };
        (0..records.len()).flat_map(of_record).map(text).collect()
    }

    fn all_metrics(record: usize) -> Vec<(usize, String, [String; 2])> {
        let inputs = ["temperature 20", "humidity 50"].map(str::to_owned);
        ["dew_point", "absolute_humidity", "heat_index"]
            .map(|metric| (record, metric.to_owned(), inputs.clone()))
            .to_vec()
    }

    #[test]
    fn values_of_two_records_belong_to_the_later_one() {
        let (warm, damp) = (reading("temperature", 20.0, "Cel", 0), reading("humidity", 50.0, "%RH", 0));
        let other = reading("humidity", 60.0, "%RH", 1);
        assert_eq!(derived(&[warm.clone(), other.clone(), damp.clone()]), all_metrics(2));
        assert_eq!(derived(&[damp, json!("no reading"), warm.clone()]), all_metrics(2));
        assert_eq!(derived(&[warm.clone(), other]), []);
        let untimed = json!({"device": "a", "metric": "humidity", "value": 50.0, "unit": "%RH"});
        assert_eq!(derived(&[warm, untimed]), []);
        // Both are of one request without times, to which a gateway gave the time.
        let assumed = |reading: &Value| {
            let time = reading["time"].as_str().unwrap().replace('Z', "-00:00");
            let Value::Object(mut reading) = reading.clone() else { panic!("{reading}") };
            // The time is the last field of a gateway's reading.
            reading.remove("time");
            let fields = serde_json::to_string(&reading).unwrap();
            (
                ContentType::Json,
                Bytes::from(format!("{},\"time\":\"{time}\"}}", fields.trim_end_matches('}'))),
            )
        };
        let bodies = [reading("temperature", 20.0, "Cel", 0), reading("humidity", 50.0, "%RH", 0)];
        let bodies: Vec<_> = bodies.iter().map(assumed).collect();
        let derivations = BatchDerivations::derive(&bodies, &Calibration::default());
        let [dew_point, ..] = derivations.of_record(1) else { panic!("{derivations:?}") };
        assert_eq!(dew_point.value.quality, [Flag::TimeAssumed].into());
    }

    #[test]
    fn values_derived_within_a_record_or_measured_are_not_derived_again() {
        let (warm, damp) = (reading("temperature", 20.0, "Cel", 0), reading("humidity", 50.0, "%RH", 0));
        assert_eq!(derived(&[json!([warm, damp]), reading("humidity", 50.0, "%RH", 0)]), []);
        let measured = reading("dew_point", 9.0, "Cel", 0);
        assert_eq!(derived(&[warm.clone(), damp.clone(), measured]), all_metrics(1)[1..]);
        // With two temperatures and none named `temperature`, the pair is ambiguous.
        let (one, two) = (reading("cpu", 60.0, "Cel", 0), reading("case", 30.0, "Cel", 0));
        assert_eq!(derived(&[one, damp.clone(), two.clone()]), []);
        assert_eq!(derived(&[two, damp, warm]), all_metrics(2));
    }
}
