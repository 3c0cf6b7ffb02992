//! Bounds of a spool.

use std::time::Duration;

use garenne_common::config::Size;

/// Bounds of a spool. New records are refused beyond them; stored records are never dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolConfig {
    /// Most bytes of all segments, with those that were set aside. Draining never waits for this bound: while records
    /// are set aside, they may be stored twice, and exceed it by one segment.
    pub max_bytes: Size,
    /// Greatest age of the oldest record that is not acknowledged.
    pub max_age: Duration,
    /// Least free space of the file system.
    pub min_free: Size,
    /// A segment of this size is followed by a new one. A request with more bytes makes a larger segment.
    pub segment_bytes: Size,
}

impl Default for SpoolConfig {
    fn default() -> Self {
        Self {
            max_bytes: Size(1 << 30),
            max_age: Duration::from_secs(7 * 24 * 3600),
            min_free: Size::mib(256),
            segment_bytes: Size::mib(8),
        }
    }
}
