//! The values of several readings by their keys.

use std::{collections::HashMap, sync::Arc};

use super::{BadField, Fault, Reading, Timestamp, Unit};
use crate::quoted;

/// The values of the readings of a request by device, metric and time, each of which can have one value only.
#[derive(Debug, Default)]
pub struct KeyedValues(HashMap<Key, (f64, Option<Unit>)>);

/// Device, metric and time.
type Key = (Arc<str>, Arc<str>, Timestamp);

impl KeyedValues {
    /// Adds the value of a reading. False if it repeats that of an earlier one.
    ///
    /// # Errors
    /// [`Fault::Duplicate`]: an earlier reading has another value for this key.
    pub fn add(&mut self, reading: &Reading) -> Result<bool, BadField> {
        let Reading { device, metric, value, unit, time, .. } = reading;
        let key = (Arc::clone(device), Arc::clone(metric), *time);
        let mut is_new = false;
        let first = self.0.entry(key).or_insert_with(|| {
            is_new = true;
            (*value, *unit)
        });
        // A value without a unit is the same as one with any.
        if first.0 == *value && first.1.zip(*unit).is_none_or(|(one, other)| one == other) {
            return Ok(is_new);
        }
        let (device, metric) = (quoted(device), quoted(metric));
        let message = format!(
            "device {device} has another value of metric {metric} at this time; the first one counts"
        );
        Err(Fault::Duplicate.in_field("value", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_value_or_another_known_unit_is_refused() {
        let reading = |device: &str, value: f64, unit: &str, micros: i64| Reading {
            device: device.into(),
            metric: "t".into(),
            value,
            unit: Unit::get(unit),
            counter: None,
            time: Timestamp::from_micros(micros).unwrap(),
        };
        let mut values = KeyedValues::default();
        for (sent, expected) in [
            (reading("d", 20.0, "Cel", 1), Some(true)),
            (reading("d", 20.0, "Cel", 1), Some(false)),
            (reading("d", 20.0, "", 1), Some(false)),
            (reading("d", 20.0, "degF", 1), None),
            (reading("d", 21.0, "Cel", 1), None),
            (reading("d", 21.0, "Cel", 2), Some(true)),
            (reading("e", 21.0, "Cel", 1), Some(true)),
        ] {
            assert_eq!(values.add(&sent).ok(), expected, "{sent:?}");
        }
    }
}
