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
                    if tokio::time::timeout_at(at, self.lowered.notified()).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Far enough in the future to never come, near enough to add to it again.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Adds without overflow: a timeout of `Duration::MAX` means "never".
pub(crate) fn saturating_add(at: Instant, by: Duration) -> Instant {
    at.checked_add(by.min(NEVER)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_durations_are_added_exactly_and_long_ones_mean_never() {
        let now = Instant::now();
        let year = Duration::from_secs(365 * 24 * 3600);
        assert_eq!(saturating_add(now, 29 * year), now + 29 * year);
        let never = saturating_add(now, Duration::MAX);
        assert!(never >= now + 30 * year);
        assert!(saturating_add(never, Duration::MAX) > never);
    }
}
