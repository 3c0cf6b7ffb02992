//! Any body of a batch is read into records that can be written again, or refused with a one-line error;
//! never a panic.

#![no_main]

use garenne_protocol::task::{Kind, NewTask, read_batch, write_batch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| match read_batch(body) {
    Err(refused) => assert!(!refused.to_string().contains('\n')),
    Ok(records) => {
        let kind = Kind::parse("reading.process").expect("a kind");
        let tasks: Vec<NewTask> = records
            .iter()
            .map(|record| NewTask {
                id: record.id.clone(),
                trace: record.trace.clone(),
                ..NewTask::new(kind.clone(), record.content_type, record.payload.to_vec())
            })
            .collect();
        let written = write_batch(&tasks).expect("what was read can be written");
        assert_eq!(read_batch(&written).expect("what was written can be read"), records);
    }
});
