//! Segments that are set aside, and the bound of bytes.

use std::path::Path;

use garenne_common::config::Size;

use super::{
    CONFIG, append,
    memory_disk::{ENOSPC, Fault, FaultKind, MemoryDisk},
    now, record, waiting,
};
use crate::{Inspection, Spool, SpoolConfig, SpoolError, log::Log, storage::Storage};

fn open(disk: &MemoryDisk, max_bytes: u64) -> Log {
    let config = SpoolConfig { max_bytes: Size(max_bytes), ..CONFIG };
    Log::open(disk.storage(), Path::new("memory"), config).unwrap()
}

/// Size of all segments on the disk.
fn on_disk(disk: &MemoryDisk) -> u64 {
    let segments = disk.files().into_iter().filter(|(name, _)| name.contains(".seg"));
    segments.map(|(_, bytes)| bytes.len() as u64).sum()
}

fn set_aside_names(disk: &MemoryDisk) -> Vec<String> {
    disk.files().into_keys().filter(|name| name.ends_with(".set-aside")).collect()
}

#[test]
fn what_is_set_aside_counts_against_the_bound_until_it_is_removed() {
    let disk = MemoryDisk::default();
    let mut log = open(&disk, 200);
    append(&mut log, &["a", "b"]).unwrap();
    log.set_aside(&[record("a"), record("b")]).unwrap();
    log.ack(2).unwrap();
    let status = log.status();
    assert_eq!((status.bytes, status.set_aside, status.set_aside_bytes), (0, 1, on_disk(&disk)));
    let refusal = append(&mut log, &["c", "d"]).unwrap_err().to_string();
    assert_eq!(
        refusal,
        "spool is full: 118B used, 118B of it set aside, and 118B needed, at most 200B are allowed; \
         `garenne-producer spool show` lists what is set aside and how to free it"
    );
    append(&mut log, &["c"]).unwrap();

    let mut log = open(&disk, 200);
    assert_eq!((log.status().set_aside, log.status().set_aside_bytes), (1, 118), "also after a restart");
    assert!(matches!(append(&mut log, &["d"]), Err(SpoolError::Full { .. })));
    for name in set_aside_names(&disk) {
        disk.remove(&name).unwrap();
    }
    append(&mut log, &["d"]).unwrap();
    assert_eq!((log.status().set_aside, log.status().set_aside_bytes), (0, 0));
    assert_eq!(waiting(&mut log), ["c", "d"]);
}

#[test]
fn a_corrupt_segment_counts_with_its_whole_file() {
    let disk = MemoryDisk::default();
    append(&mut open(&disk, 1000), &["a", "b"]).unwrap();
    let mut files = disk.files();
    let segment = files.iter_mut().find(|(name, _)| name.ends_with(".seg")).unwrap().1;
    segment[24 + 40] ^= 1;
    segment.extend([0; 50]);
    let disk = MemoryDisk::with(files);
    let mut log = open(&disk, 1000);
    assert_eq!(waiting(&mut log), ["b"]);
    log.ack(2).unwrap();
    assert_eq!((log.status().bytes, log.status().set_aside_bytes), (0, 118 + 50));
    assert_eq!(on_disk(&disk), 118 + 50);
}

#[test]
fn records_are_set_aside_beyond_the_bound_which_is_exceeded_by_one_segment_at_most() {
    const MAX_BYTES: u64 = 2000;
    let disk = MemoryDisk::default();
    let mut log = open(&disk, MAX_BYTES);
    while append(&mut log, &["record"]).is_ok() {}
    let accepted = log.status().records();
    assert!(accepted > 20, "{accepted}");
    while log.status().records() > 0 {
        let batch = log.read(0, 2, 1000).unwrap();
        log.set_aside(&batch.records).unwrap();
        log.ack(batch.end).unwrap();
        assert!(on_disk(&disk) <= MAX_BYTES + CONFIG.segment_bytes.0, "{}", on_disk(&disk));
    }
    let kept = log.status();
    assert_eq!((kept.unpublishable, kept.bytes, kept.set_aside_bytes), (accepted, 0, on_disk(&disk)));
    let refused = log.append(&[vec![record(&"x".repeat(200))]], now()).remove(0);
    assert!(matches!(refused, Err(SpoolError::Full { .. })), "{refused:?}");
    assert_eq!(set_aside_names(&disk).len(), kept.set_aside, "none is removed to make room");
}

#[test]
fn records_that_cannot_be_set_aside_leave_no_part_of_a_segment() {
    let disk = MemoryDisk::default();
    let mut log = open(&disk, 1000);
    append(&mut log, &["a"]).unwrap();
    // Create, write, sync, and the sync of the directory.
    for call in 0..4 {
        disk.fail(Some(Fault { call, calls: 1, kind: FaultKind::Error(ENOSPC) }));
        assert!(log.set_aside(&[record("a")]).is_err(), "call {call}");
        assert_eq!(set_aside_names(&disk), Vec::<String>::new(), "call {call}");
        assert_eq!((log.status().set_aside, log.status().set_aside_bytes), (0, 0));
    }
    disk.fail(None);
    log.set_aside(&[record("a")]).unwrap();
    assert_eq!((log.status().set_aside, log.status().unpublishable), (1, 1));
}

#[test]
fn a_directory_that_cannot_be_read_keeps_the_earlier_numbers() {
    let disk = MemoryDisk::default();
    let mut log = open(&disk, 100);
    log.set_aside(&[record("a")]).unwrap();
    // Free space, the list of files.
    disk.fail(Some(Fault { call: 1, calls: 1, kind: FaultKind::Error(ENOSPC) }));
    assert!(matches!(append(&mut log, &["b"]), Err(SpoolError::Full { .. })));
    assert_eq!((log.status().set_aside, log.status().set_aside_bytes), (1, on_disk(&disk)));
}

#[tokio::test]
async fn an_open_spool_notices_that_segments_were_removed() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    spool.set_aside(vec![record("a")]).await.unwrap();
    let status = spool.status();
    assert_eq!((status.borrow().set_aside, status.borrow().set_aside_bytes), (1, 71));
    let names: Vec<String> =
        Inspection::open(folder.path()).unwrap().segments().map(|(name, _)| name.to_owned()).collect();
    std::fs::remove_file(folder.path().join(&names[0])).unwrap();
    spool.recount_set_aside().await.unwrap();
    assert_eq!((status.borrow().set_aside, status.borrow().set_aside_bytes), (0, 0));
}
