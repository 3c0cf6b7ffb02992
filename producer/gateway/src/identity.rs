//! The id a reading has wherever it is sent from, however often.

use garenne_protocol::{sensor::Reading, task::TaskId};

/// An id that follows from device, metric, time and value. The value is part of it: the same device,
/// metric and time with another value is a conflict for the worker to find, not a repetition for a
/// sink to swallow.
pub fn of(reading: &Reading) -> TaskId {
    let key = TaskId::parse(&reading.identity().to_string()).expect("a UUID is an id");
    TaskId::derived(&key, &format!("{:x}", reading.value.to_bits()))
}

#[cfg(test)]
mod tests {
    use garenne_protocol::sensor::Timestamp;

    use super::*;

    #[test]
    fn the_same_reading_has_the_same_id_and_another_value_has_another() {
        let reading = Reading {
            device: "d".into(),
            metric: "t".into(),
            value: 1.5,
            unit: None,
            time: Timestamp::from_micros(1).unwrap(),
        };
        assert_eq!(of(&reading), of(&reading.clone()));
        assert_ne!(of(&reading), of(&Reading { value: 1.6, ..reading.clone() }));
        assert_ne!(of(&reading), of(&Reading { metric: "u".into(), ..reading }));
    }
}
