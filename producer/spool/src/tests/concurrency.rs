//! The spool for concurrent callers, with an fsync that waits.

use std::{future::Future, task::Poll};

use futures_util::{FutureExt, future::join_all, poll};

use super::{
    CONFIG,
    memory_disk::{Crash, EIO, Fault, FaultKind, MemoryDisk},
    open as open_log, record, waiting,
};
use crate::{Spool, SpoolError};

async fn open(disk: &MemoryDisk) -> Spool {
    Spool::open_on(disk.storage(), CONFIG).await.unwrap()
}

fn append(spool: &Spool, id: &str) -> impl Future<Output = Result<(), SpoolError>> + use<> {
    let (spool, records) = (spool.clone(), vec![record(id)]);
    async move { spool.append(records).await }
}

/// Resolves when so many syncs of files have begun.
async fn syncs(disk: &MemoryDisk, least: usize) {
    while disk.syncs() < least {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_append_is_answered_after_the_fsync_and_others_share_the_next_one() {
    let disk = MemoryDisk::default();
    let spool = open(&disk).await;
    append(&spool, "first").await.unwrap();
    let before = disk.syncs();
    disk.hold_syncs(true);
    let mut slow = append(&spool, "slow").boxed();
    assert_eq!(poll!(&mut slow), Poll::Pending);
    syncs(&disk, before + 1).await;
    let ids: Vec<String> = (0..100).map(|number| format!("n{number}")).collect();
    let mut others = join_all(ids.iter().map(|id| append(&spool, id))).boxed();
    assert!(poll!(&mut others).is_pending() && poll!(&mut slow).is_pending());
    let before_sync = waiting(&mut open_log(&disk.crash(Crash::Power)));
    assert_eq!(before_sync, ["first"], "what is not synced is not answered");
    disk.hold_syncs(false);
    slow.await.unwrap();
    assert!(others.await.into_iter().all(|outcome| outcome.is_ok()));
    assert_eq!(disk.syncs(), before + 2, "100 appends share one fsync");
    assert_eq!(waiting(&mut open_log(&disk.crash(Crash::Power))).len(), 102);
    spool.close().await;
}

#[tokio::test]
async fn a_crash_between_fsync_and_answer_loses_nothing() {
    let disk = MemoryDisk::default();
    let spool = open(&disk).await;
    let before = disk.syncs();
    disk.hold_syncs(true);
    let mut unanswered = append(&spool, "a").boxed();
    assert!(poll!(&mut unanswered).is_pending());
    syncs(&disk, before + 1).await;
    drop(unanswered);
    disk.hold_syncs(false);
    append(&spool, "b").await.unwrap();
    assert_eq!(waiting(&mut open_log(&disk.crash(Crash::Power))), ["a", "b"]);
    let batch = spool.read(0, 10, 1000).await.unwrap();
    assert_eq!((batch.records, batch.end), (vec![record("a"), record("b")], 2));
}

#[tokio::test]
async fn a_slow_fsync_of_an_append_does_not_stop_the_drain_after_it() {
    let disk = MemoryDisk::default();
    let spool = open(&disk).await;
    append(&spool, "a").await.unwrap();
    let before = disk.syncs();
    disk.hold_syncs(true);
    let mut slow = append(&spool, "b").boxed();
    assert!(poll!(&mut slow).is_pending());
    syncs(&disk, before + 1).await;
    let (status, mut read) = (spool.status(), spool.read(0, 10, 1000).boxed());
    assert!(poll!(&mut read).is_pending());
    assert_eq!(status.borrow().records(), 1);
    disk.hold_syncs(false);
    let batch = read.await.unwrap();
    assert_eq!(batch.end, 2);
    slow.await.unwrap();
    spool.ack(batch.end).await.unwrap();
    assert_eq!((status.borrow().records(), status.borrow().bytes), (0, 0));
}

#[tokio::test]
async fn callers_of_a_failed_fsync_are_refused_and_later_ones_served() {
    let disk = MemoryDisk::default();
    let spool = open(&disk).await;
    append(&spool, "a").await.unwrap();
    // Free space, write, fsync.
    disk.fail(Some(Fault { call: 2, calls: 1, kind: FaultKind::Error(EIO) }));
    assert!(matches!(append(&spool, "b").await, Err(SpoolError::Io { .. })));
    append(&spool, "c").await.unwrap();
    let batch = spool.read(0, 10, 1000).await.unwrap();
    assert_eq!(batch.records, [record("a"), record("c")]);
    assert_eq!((spool.status().borrow().accepted, spool.status().borrow().refused), (2, 1));
}
