//! Pauses between attempts.

use std::time::Duration;

use crate::random;

/// The first pause by default.
const FIRST: Duration = Duration::from_millis(100);

/// The pauses between attempts: constant, or doubled after each attempt up to a limit.
///
/// It is an endless iterator of pauses. The default doubles from 100 ms to 5 s with jitter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    limit: Duration,
    jitter: bool,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::limited(FIRST, Duration::from_secs(5)).with_jitter()
    }
}

impl Backoff {
    /// All pauses are equal.
    #[must_use]
    pub const fn constant(pause: Duration) -> Self {
        Self::limited(pause, pause)
    }
    /// Each pause is twice the one before, up to `limit`.
    #[must_use]
    pub const fn limited(first: Duration, limit: Duration) -> Self {
        Self { first, next: first, limit, jitter: false }
    }

    /// For a lost connection: from 100 ms to 1 s with jitter, so that a server that is back is found soon.
    #[must_use]
    pub const fn reconnect() -> Self {
        Self::limited(FIRST, Duration::from_secs(1)).with_jitter()
    }

    /// Makes each pause random between half of its value and all of it, so that clients that failed together do not
    /// retry together.
    #[must_use]
    pub const fn with_jitter(mut self) -> Self {
        self.jitter = true;
        self
    }

    /// The next pause.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = wait.saturating_mul(2).min(self.limit);
        if self.jitter { wait.mul_f64(0.5 + random::chance() / 2.0) } else { wait }
    }

    /// Starts again with the first pause, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.next_wait())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(backoff: Backoff, count: usize) -> Vec<u64> {
        backoff.take(count).map(|wait| wait.as_secs()).collect()
    }

    #[test]
    fn pauses_are_constant_or_double_up_to_the_limit() {
        let second = Duration::from_secs(1);
        assert_eq!(seconds(Backoff::constant(second), 3), [1, 1, 1]);
        assert_eq!(seconds(Backoff::limited(second, Duration::MAX), 5), [1, 2, 4, 8, 16]);
        assert_eq!(seconds(Backoff::limited(second, 5 * second), 5), [1, 2, 4, 5, 5]);
        assert_eq!(Backoff::limited(second, Duration::MAX).nth(100), Some(Duration::MAX));
    }

    #[test]
    fn jitter_shortens_a_pause_by_up_to_half() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = backoff.by_ref().take(12).collect();
        assert!(waits[0] >= Duration::from_millis(50) && waits[0] < Duration::from_millis(100));
        assert!(waits[11] >= Duration::from_millis(2500) && waits[11] < Duration::from_secs(5));
        assert!(waits[8..].windows(2).any(|pair| pair[0] != pair[1]), "{waits:?}");
    }

    #[test]
    fn after_a_reset_the_first_pause_comes_again() {
        let mut backoff = Backoff::limited(Duration::from_secs(1), Duration::MAX);
        assert_eq!(backoff.nth(3), Some(Duration::from_secs(8)));
        backoff.reset();
        assert_eq!(seconds(backoff, 2), [1, 2]);
    }
}
