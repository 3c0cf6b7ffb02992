//! Finds readings of a recording that contradict an earlier one: the same device, metric and time, and another value or
//! unit.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
};

use garenne_protocol::sensor::{Reading, Unit};

/// Keys of a generation. A contradiction is found if at most this many keys are between the two readings.
const GENERATION: usize = 1_000_000;

/// The first reading with a key.
#[derive(Clone, Copy)]
struct First {
    value: f64,
    unit: Option<Unit>,
    line: u32,
    differs: bool,
}

/// Remembers the keys and values of readings.
#[derive(Default)]
pub(super) struct RepeatedKeys {
    /// Keys are kept as hashes of 64 bits, because a recording may have millions of them.
    hasher: RandomState,
    recent: HashMap<u64, First>,
    older: HashMap<u64, First>,
}

/// A reading that contradicts an earlier one.
#[derive(Debug, PartialEq)]
pub(super) struct Contradiction {
    /// Whether it is the first one of its key.
    pub(super) first: bool,
    pub(super) text: String,
}

impl RepeatedKeys {
    /// Takes the next reading.
    pub(super) fn add(&mut self, line: u64, reading: &Reading) -> Option<Contradiction> {
        let Reading { device, metric, value, unit, time, .. } = reading;
        let key = self.hasher.hash_one((device, metric, time.as_micros()));
        let known = self.recent.get_mut(&key).or_else(|| self.older.get_mut(&key));
        if let Some(known) = known {
            // Where a unit is not known, only the values are compared.
            let units = known.unit.zip(*unit).filter(|(one, other)| one != other);
            if known.value == *value && units.is_none() {
                return None;
            }
            let with_unit = |value: f64, unit: Option<Unit>| match unit {
                Some(unit) if units.is_some() => format!("{value} {unit}"),
                _ => value.to_string(),
            };
            let (here, there) = (with_unit(*value, *unit), with_unit(known.value, known.unit));
            let text =
                format!("{metric} of {device} at {time} is {here}, and {there} in line {}", known.line);
            return Some(Contradiction { first: !std::mem::replace(&mut known.differs, true), text });
        }
        if self.recent.len() >= GENERATION {
            self.older = std::mem::take(&mut self.recent);
        }
        let line = line.try_into().unwrap_or(u32::MAX);
        self.recent.insert(key, First { value: *value, unit: *unit, line, differs: false });
        None
    }
}

#[cfg(test)]
mod tests {
    use garenne_protocol::sensor::Timestamp;

    use super::*;

    #[test]
    fn a_reading_that_contradicts_an_earlier_one_is_found() {
        let reading = |value: f64, micros: i64| Reading {
            device: "roof".into(),
            metric: "t".into(),
            value,
            unit: None,
            counter: None,
            time: Timestamp::from_micros(micros).unwrap(),
        };
        let mut keys = RepeatedKeys::default();
        let pressure = |unit| Reading { device: "cellar".into(), unit: Unit::get(unit), ..reading(20.0, 0) };
        assert_eq!([keys.add(8, &pressure("hPa")), keys.add(9, &pressure(""))], [None, None]);
        let text = "t of cellar at 1970-01-01T00:00:00Z is 20 kPa, and 20 hPa in line 8".to_owned();
        assert_eq!(keys.add(10, &pressure("kPa")), Some(Contradiction { first: true, text }));
        assert_eq!(keys.add(2, &reading(20.0, 0)), None);
        assert_eq!(keys.add(3, &reading(20.0, 0)), None, "a repetition");
        let text = "t of roof at 1970-01-01T00:00:00Z is 21, and 20 in line 2".to_owned();
        assert_eq!(keys.add(4, &reading(21.0, 0)), Some(Contradiction { first: true, text }));
        assert!(!keys.add(5, &reading(22.0, 0)).unwrap().first);
        for micros in 1..GENERATION as i64 {
            assert_eq!(keys.add(6, &reading(1.0, micros)), None);
        }
        assert!(keys.add(7, &reading(23.0, 0)).is_some());
    }
}
