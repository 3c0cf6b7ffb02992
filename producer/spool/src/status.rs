//! What a spool contains.

use std::time::{Duration, SystemTime};

use crate::record::Position;

/// The state of a spool, and counts since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpoolStatus {
    /// Size of the segments, in bytes, without those that were set aside.
    pub bytes: u64,
    /// Number of segments.
    pub segments: usize,
    /// Records before this position are acknowledged.
    pub acknowledged: Position,
    /// The position of the next record.
    pub end: Position,
    /// When the oldest record that is not acknowledged was accepted.
    pub oldest: Option<SystemTime>,
    /// Number of segments that were set aside, also before the spool was opened.
    pub set_aside: usize,
    /// Records accepted.
    pub accepted: u64,
    /// Records refused.
    pub refused: u64,
    /// Records acknowledged, with those that were unreadable.
    pub drained: u64,
    /// Records that could not be read. Not all can be counted: a truncated file does not tell what it lost.
    pub unreadable: u64,
}

impl SpoolStatus {
    /// The number of records that are not acknowledged.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.end - self.acknowledged
    }

    /// The age of the oldest record that is not acknowledged.
    #[must_use]
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        self.oldest.map(|oldest| now.duration_since(oldest).unwrap_or_default())
    }
}
