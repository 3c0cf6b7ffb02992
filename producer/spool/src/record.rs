//! A record, and its place in the spool.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of a record in the order of acceptance. Numbers ascend; a refused record's number is used again.
pub type Position = u64;

/// A record of the spool. Its content has no meaning to the spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The record's id, which it keeps until it is drained: 1 to [`Record::MAX_ID`] bytes.
    pub id: String,
    /// When it was handed to the spool, with a resolution of milliseconds.
    pub time: SystemTime,
    /// The content: at most [`Record::MAX_BODY`] bytes.
    pub body: Vec<u8>,
}

impl Record {
    /// Largest id, in bytes.
    pub const MAX_ID: usize = 1024;
    /// Largest body, in bytes.
    pub const MAX_BODY: usize = 64 << 20;
}

/// Records in their order, and where the next batch begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The position of the first record of the next batch. Unreadable records before it were skipped, so a batch without
    /// records may end after its start.
    pub end: Position,
    /// The records.
    pub records: Vec<Record>,
}

/// Milliseconds since the epoch; 0 before it.
pub(crate) fn milliseconds(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// The time so many milliseconds after the epoch; the epoch if the number is out of range.
pub(crate) fn time(milliseconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds)).unwrap_or(UNIX_EPOCH)
}
