//! The pool's timer: wakes the monitor at the earliest deadline.

use std::time::Duration;

use tokio::{sync::Notify, time::Instant};

use crate::atomic::next_deadline::{NONE, NextDeadline};

/// A deadline that any thread may lower and that one task waits for.
pub(crate) struct Timer {
    start: Instant,
    /// Nanoseconds after `start`.
    next: NextDeadline,
    lowered: Notify,
}

impl Timer {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), next: NextDeadline::new(), lowered: Notify::new() }
    }

    /// Makes [`wait`](Self::wait) return no later than `at`.
    pub(crate) fn wake_by(&self, at: Instant) {
        let after = at.saturating_duration_since(self.start).as_nanos();
        if self.next.lower_to(u64::try_from(after).unwrap_or(NONE - 1)) {
            self.lowered.notify_one();
        }
    }

    /// Removes the deadline. To be called before looking for due work.
    pub(crate) fn clear(&self) {
        self.next.clear();
    }

    /// Waits until the deadline has passed.
    pub(crate) async fn wait(&self) {
        loop {
            match self.next.get() {
                NONE => self.lowered.notified().await,
                next => {
                    let at = self.start + Duration::from_nanos(next);
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => return,
                        () = self.lowered.notified() => {}
                    }
                }
            }
        }
    }
}
