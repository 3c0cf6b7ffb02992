//! Adds durations to instants without overflow: a timeout of `Duration::MAX` means "never".

use std::time::Duration;

use tokio::time::Instant;

/// Far enough in the future to never come, near enough to add to it again.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

pub(crate) fn add(at: Instant, by: Duration) -> Instant {
    at.checked_add(by.min(NEVER)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_durations_are_added_exactly_and_long_ones_mean_never() {
        let now = Instant::now();
        let year = Duration::from_secs(365 * 24 * 3600);
        assert_eq!(add(now, 29 * year), now + 29 * year);
        let never = add(now, Duration::MAX);
        assert!(never >= now + 30 * year);
        assert!(add(never, Duration::MAX) > never);
    }
}
