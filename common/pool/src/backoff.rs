//! How long a worker pauses after a panic.

use std::time::Duration;

/// How long a worker pauses after a panic: doubling per panic in a row, capped, with full jitter.
///
/// The pause keeps a task that always panics from turning the pool into a busy loop.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// The longest pause after the first panic in a row.
    pub base: Duration,
    /// The longest pause after any number of panics.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(1), cap: Duration::from_millis(100) }
    }
}

impl Backoff {
    /// `jitter` is a random number from 0 to 1.
    pub(crate) fn pause(self, panics_in_a_row: u32, jitter: f64) -> Duration {
        let doubled = self.base.saturating_mul(1 << panics_in_a_row.saturating_sub(1).min(20));
        doubled.min(self.cap).mul_f64(jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap() {
        let backoff = Backoff { base: Duration::from_millis(1), cap: Duration::from_millis(5) };
        let pauses: Vec<_> = (1..=5).map(|n| backoff.pause(n, 1.0).as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        assert_eq!(backoff.pause(u32::MAX, 0.5), Duration::from_micros(2500));
        let uncapped = Backoff { base: Duration::from_micros(1), cap: Duration::MAX };
        assert_eq!(uncapped.pause(u32::MAX, 1.0), Duration::from_micros(1 << 20));
    }

    #[test]
    fn the_default_pauses_for_a_millisecond_to_a_tenth_of_a_second() {
        let pauses = [1, 100].map(|n| Backoff::default().pause(n, 1.0).as_millis());
        assert_eq!(pauses, [1, 100]);
    }
}
