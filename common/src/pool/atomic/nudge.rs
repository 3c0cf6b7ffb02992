//! A flag for a future that may be asleep.

use std::task::Waker;

use super::primitives::{AtomicBool, AtomicWaker, Ordering};

pub(crate) struct Nudge {
    flag: AtomicBool,
    waker: AtomicWaker,
}

impl Nudge {
    pub(crate) fn new() -> Self {
        Self { flag: AtomicBool::new(false), waker: AtomicWaker::new() }
    }

    pub(crate) fn set(&self) {
        self.flag.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(crate) fn reset(&self) {
        self.flag.store(false, Ordering::Relaxed);
    }

    /// Whether it was set; if not, the waker is called when it is.
    pub(crate) fn is_set_or_wakes(&self, waker: &Waker) -> bool {
        // Registered before the check, so that an order in between is not missed.
        self.waker.register(waker);
        self.flag.load(Ordering::Acquire)
    }
}
