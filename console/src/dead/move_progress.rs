//! How far a replay or a drop is, for other tasks to read while it runs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Counters of a run, which it updates.
#[derive(Debug, Default)]
pub struct MoveProgress {
    pub(super) total: AtomicU64,
    pub(super) read: AtomicU64,
    pub(super) moved: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// The counters at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MoveCounts {
    /// Messages in the queue at the start; 0 before.
    pub total: u64,
    /// Messages read, in all walks the most.
    pub read: u64,
    /// Messages moved.
    pub moved: u64,
    /// Matching messages that could not be moved.
    pub failed: u64,
    /// Bytes of the payloads of those moved.
    pub bytes: u64,
}

impl MoveProgress {
    /// The counters now.
    pub fn counts(&self) -> MoveCounts {
        let Self { total, read, moved, failed, bytes } = self;
        let [total, read, moved, failed, bytes] =
            [total, read, moved, failed, bytes].map(|counter| counter.load(Relaxed));
        MoveCounts { total, read, moved, failed, bytes }
    }

    pub(super) fn moved(&self, bytes: u64) {
        self.moved.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}
