//! A bound on how long something may take.

use std::time::Duration;

/// The time was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not done within {limit:?}")]
pub struct DeadlineExceeded {
    /// How long it was given.
    pub limit: Duration,
}

/// Runs `work` for at most `limit`. At the deadline `work` is dropped, with all it holds.
///
/// # Errors
/// The time was up.
pub async fn deadline<F: Future>(limit: Duration, work: F) -> Result<F::Output, DeadlineExceeded> {
    tokio::time::timeout(limit, work).await.map_err(|_| DeadlineExceeded { limit })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_done_in_time_is_answered() {
        assert_eq!(deadline(Duration::from_secs(1), async { 7 }).await, Ok(7));
    }

    /// The library this one learned from left the work running, and its result in a channel that
    /// nobody read.
    #[tokio::test(start_paused = true)]
    async fn nothing_is_left_of_work_that_was_given_up() {
        let held = Arc::new(());
        let inside = Arc::clone(&held);
        let work = async move {
            std::future::pending::<()>().await;
            drop(inside);
        };
        let late = deadline(Duration::from_secs(1), work).await.unwrap_err();
        assert_eq!(late.to_string(), "not done within 1s");
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
