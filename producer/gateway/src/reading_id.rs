//! The task id of a reading, the same in every repetition.

use garenne_protocol::{sensor::Reading, task::TaskId};

/// The task id of a reading, derived from its device, metric, time and value. The value is included because another
/// value for the same device, metric and time is a conflict that the worker must see, and not a repetition that a
/// sink may ignore.
pub fn reading_id(reading: &Reading) -> TaskId {
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
        assert_eq!(reading_id(&reading), reading_id(&reading.clone()));
        assert_ne!(reading_id(&reading), reading_id(&Reading { value: 1.6, ..reading.clone() }));
        assert_ne!(reading_id(&reading), reading_id(&Reading { metric: "u".into(), ..reading }));
    }
}
