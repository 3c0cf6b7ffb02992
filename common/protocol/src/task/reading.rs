//! The tasks of readings, and their ids.

use super::{content_type::ContentType, id::TaskId, kind::Kind, new_task::NewTask};
use crate::sensor::{Reading, Record};

/// The id of a reading without an id of its own: a repetition of the reading has the same, and one with another value has
/// another, so that the conflict is seen.
pub fn reading_id(reading: &Reading) -> TaskId {
    TaskId::derived(&reading.identity().into(), &format!("{:x}", reading.value.to_bits()))
}

/// The tasks of a payload's readings.
#[derive(Clone, Debug)]
pub struct ReadingTasks {
    /// One for each reading.
    pub tasks: Vec<NewTask>,
    /// Whether a repetition of the payload gives the same ids.
    pub repeatable: bool,
}

impl ReadingTasks {
    /// The tasks of `records`, of kind `kind`. If `keyed`, the key of each is its device.
    ///
    /// A record has its own id, else one that is derived from its time, value and names. Without a time in the payload it
    /// has the id that `assumed` gives to its index.
    pub fn new(
        kind: &Kind,
        keyed: bool,
        records: &[Record],
        mut assumed: impl FnMut(usize) -> TaskId,
    ) -> Self {
        let mut repeatable = true;
        let tasks = records.iter().enumerate().map(|(index, record)| {
            let given = record.id.as_ref().and_then(|id| TaskId::parse(id).ok());
            let id = given.or_else(|| (!record.time_assumed).then(|| reading_id(&record.reading)));
            repeatable &= id.is_some();
            let body = serde_json::to_vec(&record.reading).expect("a reading is plain JSON");
            let id = id.unwrap_or_else(|| assumed(index));
            let task = NewTask::with_id(id, kind.clone(), ContentType::Json, body);
            NewTask { key: keyed.then(|| record.reading.device.to_string()), ..task }
        });
        let tasks = tasks.collect();
        Self { tasks, repeatable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensor::Timestamp;

    fn reading() -> Reading {
        Reading {
            device: "d".into(),
            metric: "t".into(),
            value: 1.5,
            unit: None,
            time: Timestamp::from_micros(1).unwrap(),
        }
    }

    #[test]
    fn the_same_reading_has_the_same_id_and_another_value_has_another() {
        let reading = reading();
        assert_eq!(reading_id(&reading), reading_id(&reading.clone()));
        assert_ne!(reading_id(&reading), reading_id(&Reading { value: 1.6, ..reading.clone() }));
        assert_ne!(reading_id(&reading), reading_id(&Reading { metric: "u".into(), ..reading }));
    }

    #[test]
    fn a_record_has_its_own_id_or_one_of_its_time_or_an_assumed_one() {
        let kind = Kind::parse("reading.process").unwrap();
        let record = |id: Option<&str>, time_assumed| Record {
            reading: reading(),
            id: id.map(str::to_owned),
            time_assumed,
        };
        let assumed = |index: usize| TaskId::parse(&format!("assumed-{index}")).unwrap();
        let ids = |records: &[Record]| {
            let made = ReadingTasks::new(&kind, true, records, assumed);
            assert!(made.tasks.iter().all(|task| task.key.as_deref() == Some("d")));
            let ids: Vec<_> = made.tasks.iter().map(|task| task.id.to_string()).collect();
            (ids, made.repeatable)
        };
        let by_time = reading_id(&reading()).to_string();
        assert_eq!(
            ids(&[record(Some("own"), true), record(None, false)]),
            (vec!["own".into(), by_time], true)
        );
        assert_eq!(ids(&[record(Some("own"), false), record(None, true)]).0[1], "assumed-1");
        assert!(!ids(&[record(None, true)]).1);
        assert_eq!(ids(&[]), (vec![], true));
    }
}
