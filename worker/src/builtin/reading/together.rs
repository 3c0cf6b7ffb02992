//! What the readings of a pack's records say together.
//!
//! A gateway makes a task of each reading, so that temperature and humidity of one message of a sensor are
//! two tasks. They travel in one pack, which is run in one place: what they give together belongs to the
//! later of the two. It follows from the pack alone, so a pack that comes again gives the same.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use bytes::Bytes;
use garenne_protocol::sensor::Timestamp;

use super::{Calibration, Stored, derive, stored, task::Readings};
use garenne::handler::{ContentType, Payload};

/// A derived value, and the reading of another record that it was made from: metric and value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Joint {
    pub(super) value: Stored,
    pub(super) partner: (Arc<str>, f64),
}

/// What is derived from the readings of different records, by the record that it belongs to.
#[derive(Debug, Default)]
pub(super) struct Together(HashMap<usize, Vec<Joint>>);

impl Together {
    /// Looks at all records of a pack. One that cannot be read says so when its turn comes; a reading
    /// without a time of its own belongs to none other.
    pub(super) fn read(bodies: &[(ContentType, Bytes)], calibration: &Calibration) -> Self {
        let mut readings = Vec::new();
        let mut records = Vec::new();
        let mut derived_alone: HashSet<(Arc<str>, Arc<str>, Timestamp)> = HashSet::new();
        for (record, (content_type, body)) in bodies.iter().enumerate() {
            let Ok(Readings(read)) = Readings::read(*content_type, body) else { continue };
            let first = readings.len();
            let timed = read.iter().filter(|reading| !reading.time_assumed);
            readings.extend(timed.map(|reading| stored(reading, calibration)));
            records.resize(readings.len(), record);
            let alone = derive::all(&readings[first..]).into_iter();
            derived_alone.extend(alone.map(|it| (it.device, it.metric, it.time)));
        }
        let mut together = Self::default();
        for derive::Derived { value, temperature, humidity } in derive::pairs(&readings) {
            let key = (Arc::clone(&value.device), Arc::clone(&value.metric), value.time);
            if records[temperature] == records[humidity] || derived_alone.contains(&key) {
                continue;
            }
            let (partner, own) = (temperature.min(humidity), temperature.max(humidity));
            let partner = (Arc::clone(&readings[partner].metric), readings[partner].value);
            together.0.entry(records[own]).or_default().push(Joint { value, partner });
        }
        together
    }

    /// What belongs to a record.
    pub(super) fn of(&self, record: usize) -> &[Joint] {
        self.0.get(&record).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reading(metric: &str, value: f64, unit: &str, second: u32) -> Value {
        let time = format!("2026-11-20T07:30:{second:02}Z");
        json!({"device": "a", "metric": metric, "value": value, "unit": unit, "time": time})
    }

    fn told(records: &[Value]) -> Vec<(usize, String, String)> {
        let body = |record: &Value| (ContentType::Json, Bytes::from(record.to_string()));
        let bodies: Vec<_> = records.iter().map(body).collect();
        let together = Together::read(&bodies, &Calibration::default());
        let of = |record| together.of(record).iter().map(move |it| (record, it));
        let told = (0..records.len()).flat_map(of);
        told.map(|(record, it)| (record, it.value.metric.to_string(), it.partner.0.to_string())).collect()
    }

    fn belongs(record: usize, partner: &str) -> Vec<(usize, String, String)> {
        ["dew_point", "absolute_humidity", "heat_index"]
            .map(|metric| (record, metric.to_owned(), partner.to_owned()))
            .to_vec()
    }

    #[test]
    fn a_pair_of_two_records_belongs_to_the_later() {
        let (warm, damp) = (reading("temperature", 20.0, "Cel", 0), reading("humidity", 50.0, "%RH", 0));
        let other = reading("humidity", 60.0, "%RH", 1);
        assert_eq!(told(&[warm.clone(), other.clone(), damp.clone()]), belongs(2, "temperature"));
        assert_eq!(told(&[damp, json!("no reading"), warm.clone()]), belongs(2, "humidity"));
        assert_eq!(told(&[warm.clone(), other]), []);
        let untimed = json!({"device": "a", "metric": "humidity", "value": 50.0, "unit": "%RH"});
        assert_eq!(told(&[warm, untimed]), []);
    }

    #[test]
    fn what_a_record_gives_alone_and_what_a_device_measured_is_not_given_again() {
        let (warm, damp) = (reading("temperature", 20.0, "Cel", 0), reading("humidity", 50.0, "%RH", 0));
        assert_eq!(told(&[json!([warm, damp]), reading("humidity", 50.0, "%RH", 0)]), []);
        let measured = reading("dew_point", 9.0, "Cel", 0);
        assert_eq!(told(&[warm.clone(), damp.clone(), measured]), belongs(1, "temperature")[1..]);
        // Two temperatures of which none bears the name: which is meant is not known.
        let (one, two) = (reading("cpu", 60.0, "Cel", 0), reading("case", 30.0, "Cel", 0));
        assert_eq!(told(&[one, damp.clone(), two.clone()]), []);
        assert_eq!(told(&[two, damp, warm]), belongs(2, "humidity"));
    }
}
