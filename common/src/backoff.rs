//! Pauses between attempts.

use std::time::Duration;

use rand::Rng;

/// Capped exponential backoff. Each wait is random between half of its value and all of it, so that a fleet does
/// not reconnect in step.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: Duration::from_millis(100), cap: Duration::from_secs(5) }
    }
}

impl Backoff {
    /// The next wait. Its upper bound doubles from 100 ms to the cap, 5 s by default.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next.mul_f64(rand::rng().random_range(0.5..1.0));
        self.next = (self.next * 2).min(self.cap);
        wait
    }

    /// Backoff after a lost connection: capped at 1 s, so that a broker that is back is found soon.
    pub fn reconnect() -> Self {
        Self { cap: Duration::from_secs(1), ..Self::default() }
    }

    /// Starts again at 100 ms, after a success.
    pub fn reset(&mut self) {
        self.next = Self::default().next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_the_cap_with_jitter() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..12).map(|_| backoff.next_wait()).collect();
        assert!(waits[0] >= Duration::from_millis(50) && waits[0] < Duration::from_millis(100));
        assert!(waits[11] >= Duration::from_millis(2500) && waits[11] < Duration::from_secs(5));
    }
}
