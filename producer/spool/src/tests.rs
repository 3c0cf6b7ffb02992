//! The log on a disk in memory whose operations fail on demand, and the spool on it.

mod concurrency;
mod corruption;
mod directory;
mod failures;
mod foreign;
mod memory_disk;
mod model;
mod set_aside;

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use garenne_common::config::Size;

use crate::{SpoolConfig, log::Log, record::Record};
use memory_disk::MemoryDisk;

/// No bound is near, and a segment has few records.
const CONFIG: SpoolConfig = SpoolConfig {
    max_bytes: Size(1 << 20),
    max_age: Duration::from_secs(3600),
    min_free: Size(0),
    segment_bytes: Size(180),
};

/// The time of all appends.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn record(id: &str) -> Record {
    Record { id: id.to_owned(), time: now(), body: format!("content of {id}").into_bytes() }
}

fn open(disk: &MemoryDisk) -> Log {
    Log::open(disk.storage(), Path::new("memory"), CONFIG).unwrap()
}

fn append(log: &mut Log, ids: &[&str]) -> Result<(), crate::SpoolError> {
    log.append(&[ids.iter().map(|id| record(id)).collect()], now()).remove(0)
}

/// The ids of all records that wait, each with the content that was appended.
fn waiting(log: &mut Log) -> Vec<String> {
    let mut ids = Vec::new();
    let mut from = 0;
    loop {
        // A failed read is repeated; after some the segment is passed over.
        let Some(batch) = (0..4).find_map(|_| log.read(from, 2, 1000).ok()) else {
            panic!("reading does not go on at {from}");
        };
        for read in &batch.records {
            assert_eq!(*read, record(&read.id));
            ids.push(read.id.clone());
        }
        if batch.records.is_empty() && batch.end <= from.max(log.status().acknowledged) {
            return ids;
        }
        from = batch.end;
    }
}
