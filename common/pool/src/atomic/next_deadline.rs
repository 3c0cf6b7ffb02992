//! The earliest pending deadline. Many tasks lower it; one timer task reads it.

use super::primitives::{AtomicU64, Ordering};

/// The earliest pending deadline, in nanoseconds since the start of the timer.
pub(crate) struct NextDeadline(AtomicU64);

/// No deadline is set.
pub(crate) const NONE: u64 = u64::MAX;

impl NextDeadline {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(NONE))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Lowers the deadline to `at`. Returns true if that changed it, so that the timer task must be woken.
    pub(crate) fn lower_to(&self, at: u64) -> bool {
        // Usually an earlier deadline is set already, so this costs one read of a rarely written cache line.
        at < self.0.load(Ordering::SeqCst) && at < self.0.fetch_min(at, Ordering::SeqCst)
    }

    /// Removes the deadline. The timer calls this before it looks for due work: the look sees what was due
    /// before, and later deadlines are set again by their owners.
    pub(crate) fn clear(&self) {
        self.0.store(NONE, Ordering::SeqCst);
    }
}
