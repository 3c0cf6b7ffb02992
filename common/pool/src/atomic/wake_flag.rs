//! A flag that wakes the future waiting for it.

use std::task::Waker;

use super::primitives::{AtomicBool, AtomicWaker, Ordering};

/// A flag that one future polls and that any thread may set.
pub(crate) struct WakeFlag {
    flag: AtomicBool,
    waker: AtomicWaker,
}

impl WakeFlag {
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

    /// Registers `waker` to be woken by [`set`](Self::set) and returns whether the flag is set already.
    pub(crate) fn register_and_check(&self, waker: &Waker) -> bool {
        // Register before the check: a `set` between the two then wakes the registered waker.
        self.waker.register(waker);
        self.flag.load(Ordering::Acquire)
    }
}
