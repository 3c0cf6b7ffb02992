//! Counters of sent readings.

use std::sync::atomic::AtomicU64;

/// Counters of sent readings.
#[derive(Debug, Default)]
pub struct DeliveryCounts {
    /// Readings that were confirmed.
    pub delivered: AtomicU64,
    /// Readings that were refused as invalid.
    pub refused: AtomicU64,
    /// Readings that were given up. Some of them may be stored.
    pub undelivered: AtomicU64,
    /// Requests that were sent again.
    pub retries: AtomicU64,
}
