//! The tasks of readings.

use garenne_gateway::reading_id;
use garenne_protocol::{
    sensor::Record,
    task::{ContentType, Kind, NewTask, TaskId},
};

/// The id that a record has in each repetition, if it has one, and the body of its task.
pub(crate) fn task_of(record: &Record) -> (Option<TaskId>, Vec<u8>) {
    let given = record.id.as_ref().and_then(|id| TaskId::parse(id).ok());
    let id = given.or_else(|| (!record.time_assumed).then(|| reading_id(&record.reading)));
    (id, serde_json::to_vec(&record.reading).expect("a reading is plain JSON"))
}

/// The tasks of the records that a map made of the payload of the dead letter `letter`. Publishing them again has no
/// second effect: a record without an id or a time of its own gets an id that is derived from the letter's.
pub fn tasks_of(letter: &TaskId, kind: &Kind, sharded: bool, records: Vec<Record>) -> Vec<NewTask> {
    let tasks = records.iter().enumerate().map(|(index, record)| {
        let derived = || TaskId::derived(letter, &index.to_string());
        let (id, body) = task_of(record);
        NewTask {
            id: id.unwrap_or_else(derived),
            key: sharded.then(|| record.reading.device.to_string()),
            ..NewTask::new(kind.clone(), ContentType::Json, body)
        }
    });
    tasks.collect()
}
