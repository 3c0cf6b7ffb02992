//! Failing file operations: each operation of a scenario fails in turn, with each error, once or from then on.

use std::collections::BTreeSet;

use garenne_common::config::Size;

use super::{
    CONFIG, append,
    memory_disk::{Crash, EIO, ENOSPC, Fault, FaultKind, MemoryDisk},
    now, open, record, waiting,
};
use crate::{SpoolConfig, SpoolError, log::Log};

const CRASHES: [Crash; 4] = [Crash::Process, Crash::Power, Crash::TornPower(1), Crash::TornPower(50)];

/// The callers' results.
#[derive(Default)]
struct Told {
    accepted: Vec<String>,
    acknowledged: BTreeSet<String>,
}

/// Opens the spool, appends, reads and acknowledges; every step may fail.
fn scenario(disk: &MemoryDisk, told: &mut Told) {
    let mut number = 0;
    for opening in 0..2 {
        let Ok(mut log) = Log::open(disk.storage(), std::path::Path::new("memory"), CONFIG) else { continue };
        for _ in 0..5 {
            let ids = [format!("{opening}-{number}"), format!("{opening}-{}", number + 1)];
            number += 2;
            if append(&mut log, &[&ids[0], &ids[1]]).is_ok() {
                told.accepted.extend(ids);
            }
            if number % 4 == 0
                && let Ok(batch) = log.read(0, 3, 1000)
            {
                told.acknowledged.extend(batch.records.into_iter().map(|record| record.id));
                // After an error the records may come again.
                let _ = log.ack(batch.end);
            }
        }
    }
}

/// Checks what is delivered after a crash, and that nothing is reported as missing.
fn check(disk: &MemoryDisk, told: &Told, what: &str) {
    disk.fail(None);
    for crash in CRASHES {
        let disk = disk.crash(crash);
        let mut log = open(&disk);
        let delivered = waiting(&mut log);
        let known: BTreeSet<&String> = delivered.iter().collect();
        assert_eq!(known.len(), delivered.len(), "{what} {crash:?}: a record is delivered twice");
        let due: Vec<&String> = told.accepted.iter().filter(|id| !told.acknowledged.contains(*id)).collect();
        let of_due: Vec<&String> = delivered.iter().filter(|id| due.contains(id)).collect();
        assert_eq!(of_due, due, "{what} {crash:?}: lost or out of order");
        append(&mut log, &["new"]).unwrap();
        assert_eq!(waiting(&mut log).last().unwrap(), "new", "{what} {crash:?}");
        let status = log.status();
        let missing = (status.set_aside, status.unreadable, status.corrupt);
        assert_eq!(missing, (0, 0, 0), "{what} {crash:?}: nothing is missing");
    }
}

#[test]
fn no_accepted_record_is_lost_whichever_operation_fails() {
    let disk = MemoryDisk::default();
    disk.fail(None);
    let mut told = Told::default();
    scenario(&disk, &mut told);
    let calls = disk.calls();
    assert_eq!(told.accepted.len(), 20);
    check(&disk, &told, "no fault");

    for kind in [FaultKind::Error(ENOSPC), FaultKind::Error(EIO), FaultKind::Short] {
        for count in [1, 2, 7, usize::MAX / 2] {
            for call in 0..calls {
                let fault = Fault { call, calls: count, kind };
                let (disk, mut told) = (MemoryDisk::default(), Told::default());
                disk.fail(Some(fault));
                scenario(&disk, &mut told);
                if matches!(kind, FaultKind::Short) {
                    assert_eq!(told.accepted.len(), 20, "{fault:?}: a short write is continued");
                }
                check(&disk, &told, &format!("{fault:?}"));
            }
        }
    }
}

#[test]
fn after_a_failed_append_the_next_one_succeeds_and_the_refused_records_do_not_count() {
    // Each operation of an append to an existing segment, and of one that creates a segment.
    for records in [1, 2] {
        let disk = MemoryDisk::default();
        let mut log = open(&disk);
        for index in 0..records {
            append(&mut log, &[&format!("before-{index}")]).unwrap();
        }
        disk.fail(None);
        append(&mut log, &["probe"]).unwrap();
        // The free space is read first. The cursor is written last, and its failure refuses nothing.
        for call in 0..disk.calls() - 1 {
            let disk = MemoryDisk::default();
            let mut log = open(&disk);
            for index in 0..records {
                append(&mut log, &[&format!("before-{index}")]).unwrap();
            }
            disk.fail(Some(Fault { call, calls: 1, kind: FaultKind::Error(EIO) }));
            let error = append(&mut log, &["refused"]).unwrap_err();
            assert!(matches!(error, SpoolError::Io { .. }), "{error}");
            append(&mut log, &["after"]).unwrap();
            for crash in CRASHES {
                let ids = waiting(&mut open(&disk.crash(crash)));
                assert!(!ids.contains(&"refused".to_owned()), "call {call} {crash:?}: {ids:?}");
                assert_eq!(ids.last().unwrap(), "after");
                assert_eq!(ids.len(), records + 1);
            }
        }
    }
}

#[test]
fn after_a_failed_fsync_the_segment_gets_no_more_records() {
    let disk = MemoryDisk::default();
    let mut log = open(&disk);
    append(&mut log, &["a"]).unwrap();
    // Free space, write, fsync.
    disk.fail(Some(Fault { call: 2, calls: 1, kind: FaultKind::Error(EIO) }));
    let error = append(&mut log, &["b"]).unwrap_err();
    assert_eq!(error.to_string(), "spool: cannot sync a segment: Input/output error (os error 5)");
    append(&mut log, &["c"]).unwrap();
    assert_eq!(log.status().segments, 2);
    assert_eq!(waiting(&mut log), ["a", "c"]);
    assert_eq!(waiting(&mut open(&disk.crash(Crash::Power))), ["a", "c"]);
}

#[test]
fn records_of_a_failed_fsync_that_count_after_a_restart_are_durable() {
    let disk = MemoryDisk::default();
    let mut log = open(&disk);
    append(&mut log, &["a"]).unwrap();
    // Free space, write, fsync, and the truncation of what was written.
    disk.fail(Some(Fault { call: 2, calls: 2, kind: FaultKind::Error(EIO) }));
    append(&mut log, &["b"]).unwrap_err();
    disk.fail(None);
    drop(log);
    let mut log = open(&disk);
    append(&mut log, &["c"]).unwrap();
    assert_eq!(waiting(&mut log), ["a", "b", "c"]);
    let mut log = open(&disk.crash(Crash::Power));
    assert_eq!(waiting(&mut log), ["a", "b", "c"]);
    assert_eq!((log.status().set_aside, log.status().unreadable), (0, 0));
}

#[test]
fn a_full_disk_refuses_records_while_draining_goes_on() {
    let disk = MemoryDisk::default();
    let mut log = open(&disk);
    append(&mut log, &["a", "b"]).unwrap();
    disk.set_free(100);
    log = {
        drop(log);
        let config = SpoolConfig { min_free: Size(100), ..CONFIG };
        Log::open(disk.storage(), std::path::Path::new("memory"), config).unwrap()
    };
    let error = append(&mut log, &["c"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "disk of the spool is nearly full: 100B free, 71B needed, at least 100B must remain"
    );
    assert_eq!(waiting(&mut log), ["a", "b"]);
    log.ack(2).unwrap();
    assert_eq!((log.status().bytes, log.status().drained, log.status().refused), (0, 2, 1));
}

#[test]
fn bounds_on_bytes_and_age_refuse_whole_requests_and_name_the_limit() {
    let disk = MemoryDisk::default();
    let config = SpoolConfig { max_bytes: Size(200), ..CONFIG };
    let mut log = Log::open(disk.storage(), std::path::Path::new("memory"), config).unwrap();
    append(&mut log, &["a"]).unwrap();
    let requests = [vec![record("b"), record("c"), record("d")], vec![record("e")]];
    let outcomes = log.append(&requests, now());
    assert_eq!(
        outcomes[0].clone().unwrap_err().to_string(),
        "spool is full: 71B used and 165B needed, at most 200B are allowed"
    );
    assert_eq!((outcomes[1].clone(), waiting(&mut log)), (Ok(()), vec!["a".to_owned(), "e".to_owned()]));

    let later = now() + CONFIG.max_age + std::time::Duration::from_secs(1);
    let outcome = log.append(&[vec![record("f")]], later).remove(0);
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "spool is too old: its oldest record waits for 3601s, at most 3600s are allowed"
    );
    log.ack(u64::MAX).unwrap();
    assert_eq!(log.append(&[vec![record("f")]], later), [Ok(())]);
}

#[test]
fn an_id_or_body_over_its_limit_is_refused_and_named() {
    let mut log = open(&MemoryDisk::default());
    let outcome = log.append(&[vec![record("a"), record("")]], now()).remove(0);
    assert_eq!(outcome.unwrap_err().to_string(), "record 1: id has 0 bytes, 1 to 1024 are allowed");
    let outcome = log.append(&[vec![record(&"x".repeat(1025))]], now()).remove(0);
    assert_eq!(outcome.unwrap_err().to_string(), "record 0: id has 1025 bytes, 1 to 1024 are allowed");
    assert_eq!(waiting(&mut log), Vec::<String>::new());
}

#[test]
fn a_segment_that_cannot_be_read_is_passed_over_and_kept() {
    let disk = MemoryDisk::default();
    let mut log = open(&disk);
    for id in ["a1", "a2", "a3", "b1"] {
        append(&mut log, &[id]).unwrap();
    }
    disk.fail(Some(Fault { call: 0, calls: 3, kind: FaultKind::Error(EIO) }));
    for _ in 0..3 {
        assert!(matches!(log.read(0, 10, 1000), Err(SpoolError::Io { .. })));
    }
    let batch = log.read(0, 10, 1000).unwrap();
    assert_eq!(batch.records, [record("b1")]);
    log.ack(batch.end).unwrap();
    assert_eq!((log.status().set_aside, log.status().unreadable), (1, 3));
    let kept = disk.files().into_iter().find(|(name, _)| name.ends_with(".set-aside")).unwrap();
    assert!(kept.1.windows(2).any(|bytes| bytes == b"a3"));
}

/// A spool with four records in two segments, opened while the last segment cannot be read.
fn opened_without_the_last_segment() -> (MemoryDisk, Log) {
    let disk = MemoryDisk::default();
    let mut log = open(&disk);
    for id in ["a1", "a2", "a3", "b1"] {
        append(&mut log, &[id]).unwrap();
    }
    drop(log);
    // Directory, cursor (open and read), the last segment's beginning, then open, size and read of each segment.
    disk.fail(Some(Fault { call: 11, calls: 3, kind: FaultKind::Error(EIO) }));
    let log = open(&disk);
    disk.fail(None);
    (disk, log)
}

#[test]
fn positions_that_were_left_out_behind_an_unreadable_segment_are_no_loss() {
    let (disk, mut log) = opened_without_the_last_segment();
    append(&mut log, &["c1"]).unwrap();
    assert!(disk.files().keys().any(|name| name.ends_with("-gap.seg")), "{:?}", disk.files().keys());
    for what in ["in the same process", "after a restart"] {
        assert_eq!(waiting(&mut log), ["a1", "a2", "a3", "b1", "c1"], "{what}");
        let status = log.status();
        assert_eq!((status.records(), status.unreadable, status.corrupt), (5, 0, 0), "{what}");
        log = open(&disk);
    }
    log.ack(u64::MAX).unwrap();
    let status = log.status();
    assert_eq!((status.records(), status.drained, status.set_aside), (0, 5, 0));
}

#[test]
fn a_segment_that_becomes_readable_gives_its_unused_positions_back() {
    let (disk, mut log) = opened_without_the_last_segment();
    assert!(log.status().records() > 4, "an upper bound");
    assert_eq!(waiting(&mut log), ["a1", "a2", "a3", "b1"]);
    assert_eq!((log.status().records(), log.status().end), (4, 4));
    append(&mut log, &["c1"]).unwrap();
    assert!(!disk.files().keys().any(|name| name.contains("-gap")));
    assert_eq!(waiting(&mut open(&disk)), ["a1", "a2", "a3", "b1", "c1"]);
}

#[test]
fn an_unknown_number_of_unreadable_records_counts_as_one() {
    let (disk, mut log) = opened_without_the_last_segment();
    log.ack(3).unwrap();
    append(&mut log, &["c1"]).unwrap();
    disk.fail(Some(Fault { call: 0, calls: 2, kind: FaultKind::Error(EIO) }));
    for _ in 0..2 {
        assert!(matches!(log.read(0, 10, 1000), Err(SpoolError::Io { .. })));
    }
    let batch = log.read(0, 10, 1000).unwrap();
    assert_eq!(batch.records, [record("c1")], "the third failure was at the start");
    log.ack(batch.end).unwrap();
    let status = log.status();
    assert_eq!((status.unreadable, status.corrupt, status.set_aside), (1, 1, 1));
}
