//! What a queue's consumer does after its own code panicked over a delivery.

use std::time::Duration;

use garenne_amqp::Backoff;
use tokio::time::Instant;

/// How long nothing may panic until the queue counts as consumed in order again.
const CALM: Duration = Duration::from_secs(10);

/// Slows a queue's consumer down while the admission of deliveries panics: what was handed back comes again at
/// once, and must not keep the worker busy with nothing else.
pub(super) struct Admission {
    backoff: Backoff,
    /// When the last panic is forgotten.
    calm: Option<Instant>,
}

impl Admission {
    pub(super) fn new() -> Self {
        Self { backoff: Backoff::reconnect(), calm: None }
    }

    /// Notes a panic; answers how long no delivery should be taken.
    pub(super) fn panicked(&mut self, now: Instant) -> Duration {
        self.calm = Some(now + CALM);
        self.backoff.next_wait()
    }

    /// When [`calmed`](Self::calmed) is to be called, if at all.
    pub(super) fn calm(&self) -> Option<Instant> {
        self.calm
    }

    /// Nothing panicked for long enough.
    pub(super) fn calmed(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn panics_in_a_row_are_waited_for_longer_until_it_is_calm() {
        let (mut admission, now) = (Admission::new(), Instant::now());
        assert_eq!(admission.calm(), None);
        assert!(admission.panicked(now) < Duration::from_millis(100));
        let waits: Vec<_> = (0..5).map(|_| admission.panicked(now)).collect();
        assert!(waits[4] >= Duration::from_millis(500) && waits[4] <= Duration::from_secs(1), "{waits:?}");
        assert_eq!(admission.calm(), Some(now + CALM));
        admission.calmed();
        assert_eq!(admission.calm(), None);
        assert!(admission.panicked(now) < Duration::from_millis(100));
    }
}
