//! Slows a consumer down after the worker's own code panicked over a delivery.

use std::time::Duration;

use garenne_common::backoff::Backoff;
use tokio::time::Instant;

/// Time without a panic after which the backoff is reset and the queue counts as consumed again.
const RESET_AFTER: Duration = Duration::from_secs(10);

/// Backoff of one consumer between panics in the admission of deliveries.
///
/// A panic requeues its deliveries, and the broker delivers them again at once. Without the backoff the worker
/// would do nothing else.
pub(super) struct AdmissionBackoff {
    backoff: Backoff,
    /// When to call [`reset`](Self::reset). `None` if there was no panic since the last reset.
    pub(super) reset_at: Option<Instant>,
}

impl AdmissionBackoff {
    pub(super) fn new() -> Self {
        Self { backoff: Backoff::reconnect(), reset_at: None }
    }

    /// Records a panic. Returns how long the consumer should take no deliveries.
    pub(super) fn record_panic(&mut self, now: Instant) -> Duration {
        self.reset_at = Some(now + RESET_AFTER);
        self.backoff.next_wait()
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_backoff_grows_with_each_panic_until_it_is_reset() {
        let (mut backoff, now) = (AdmissionBackoff::new(), Instant::now());
        assert_eq!(backoff.reset_at, None);
        assert!(backoff.record_panic(now) < Duration::from_millis(100));
        let waits: Vec<_> = (0..5).map(|_| backoff.record_panic(now)).collect();
        assert!(waits[4] >= Duration::from_millis(500) && waits[4] <= Duration::from_secs(1), "{waits:?}");
        assert_eq!(backoff.reset_at, Some(now + RESET_AFTER));
        backoff.reset();
        assert_eq!(backoff.reset_at, None);
        assert!(backoff.record_panic(now) < Duration::from_millis(100));
    }
}
