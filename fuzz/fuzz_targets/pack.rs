//! Any body of a batch is read into records that can be written again, or refused with a one-line error;
//! never a panic.

#![no_main]

use garenne_protocol::task::{BatchRecord, Kind, NewTask, Version, read_batch, write_batch};
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
                version: record.version.unwrap_or_else(Version::next),
                ..NewTask::new(kind.clone(), record.content_type, record.payload.to_vec())
            })
            .collect();
        let written = write_batch(&tasks).expect("what was read can be written");
        let read = read_batch(&written).expect("what was written can be read");
        // A record without a version was given one.
        let same = |(read, record): (BatchRecord<'_>, &BatchRecord<'_>)| {
            let version = record.version.and(read.version);
            BatchRecord { version, ..read } == *record
        };
        assert!(read.len() == records.len() && read.into_iter().zip(&records).all(same));
    }
});
