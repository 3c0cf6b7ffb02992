//! The tasks of readings, and their ids.

use super::{content_type::ContentType, id::TaskId, kind::Kind, new_task::NewTask};
use crate::sensor::{Reading, Record};

/// The kind of a reading's task.
pub const READING_KIND: &str = "reading.process";

/// The id of a reading without an id of its own: a repetition of the reading has the same, and one with another value or
/// another unit has another, so that the conflict is seen.
pub fn reading_id(reading: &Reading) -> TaskId {
    let value = reading.value.to_bits();
    let name = match reading.unit {
        Some(unit) => format!("{value:x} {unit}"),
        None => format!("{value:x}"),
    };
    TaskId::derived(&reading.identity().into(), &name)
}

/// How the body of a reading ends whose time is not its sender's. RFC 3339 (section 4.3) means by this offset that the time
/// is UTC and the sender's clock unknown; every reader of RFC 3339 takes it for UTC.
const ASSUMED: &[u8] = br#"-00:00"}"#;

/// The body of a reading's task. If its time was assumed, the body tells ([`has_assumed_time`]).
pub fn reading_body(record: &Record) -> Vec<u8> {
    let mut body = serde_json::to_vec(&record.reading).expect("a reading is plain JSON");
    // The time is the last field.
    if record.time_assumed && body.ends_with(br#"Z"}"#) {
        body.truncate(body.len() - 3);
        body.extend_from_slice(ASSUMED);
    }
    body
}

/// The task of a reading. If `keyed`, its key is its device.
pub fn reading_task(id: TaskId, kind: &Kind, record: &Record, keyed: bool) -> NewTask {
    let task = NewTask::with_id(id, kind.clone(), ContentType::Json, reading_body(record));
    NewTask { key: keyed.then(|| record.reading.device.to_string()), ..task }
}

/// Whether the body of a task is a single reading whose time a gateway, a bridge or a map assumed.
pub fn has_assumed_time(body: &[u8]) -> bool {
    body.trim_ascii_end().ends_with(ASSUMED)
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
    /// A record has its own id, else one that is derived from its time, value, unit and names. Without a time in the payload it
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
            reading_task(id.unwrap_or_else(|| assumed(index)), kind, record, keyed)
        });
        let tasks = tasks.collect();
        Self { tasks, repeatable }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sensor::{Timestamp, Unit};

    fn reading() -> Reading {
        Reading {
            device: "d".into(),
            metric: "t".into(),
            value: 1.5,
            unit: None,
            counter: None,
            time: Timestamp::from_micros(1).unwrap(),
        }
    }

    #[test]
    fn the_same_reading_has_the_same_id_and_another_value_has_another() {
        let reading = reading();
        assert_eq!(reading_id(&reading), reading_id(&reading.clone()));
        assert_ne!(reading_id(&reading), reading_id(&Reading { value: 1.6, ..reading.clone() }));
        let with_unit = |unit| reading_id(&Reading { unit: Unit::get(unit), ..reading.clone() });
        assert_eq!(with_unit("Cel"), with_unit("Cel"));
        assert_eq!(BTreeSet::from([reading_id(&reading), with_unit("Cel"), with_unit("degF")]).len(), 3);
        assert_ne!(reading_id(&reading), reading_id(&Reading { metric: "u".into(), ..reading }));
    }

    #[test]
    fn a_body_tells_that_its_time_was_assumed_and_reads_back_equal() {
        for (micros, time) in
            [(1, "1970-01-01T00:00:00.000001"), (1_790_000_000_000_000, "2026-09-21T14:13:20")]
        {
            let reading = Reading { time: Timestamp::from_micros(micros).unwrap(), ..reading() };
            for (time_assumed, offset) in [(true, "-00:00"), (false, "Z")] {
                let body = reading_body(&Record { reading: reading.clone(), id: None, time_assumed });
                let text = str::from_utf8(&body).unwrap();
                assert!(text.ends_with(&format!(r#""time":"{time}{offset}"}}"#)), "{text}");
                assert_eq!(has_assumed_time(&body), time_assumed);
                assert_eq!(serde_json::from_slice::<Reading>(&body).unwrap(), reading);
                let read = crate::sensor::readings_from("", &body, Timestamp::UNIX_EPOCH).unwrap();
                assert_eq!((&read[0].reading, read[0].time_assumed), (&reading, false));
            }
        }
        assert!(!has_assumed_time(br#"[{"time":"2026-09-21T14:13:20-00:00"}]"#));
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
