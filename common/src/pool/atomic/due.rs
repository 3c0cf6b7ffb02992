//! A moment that many may move forward and one looks at.

use super::primitives::{AtomicU64, Ordering};

/// When somebody has to look next, in nanoseconds.
pub(crate) struct Due(AtomicU64);

/// Nobody has to.
pub(crate) const NEVER: u64 = u64::MAX;

impl Due {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Makes it no later than `at`. True when that changed it, and who sleeps has to be told.
    pub(crate) fn no_later_than(&self, at: u64) -> bool {
        // Nearly always it is earlier already, and a read of a line nobody writes is all this costs.
        at < self.0.load(Ordering::SeqCst) && at < self.0.fetch_min(at, Ordering::SeqCst)
    }

    /// To be called before looking. What becomes due afterwards is set by who caused it, what was due
    /// before is seen by the look.
    pub(crate) fn clear(&self) {
        self.0.store(NEVER, Ordering::SeqCst);
    }
}
