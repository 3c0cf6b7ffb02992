//! A time limit for a future.

use std::time::Duration;

/// The work was not done within its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not done within {limit:?}")]
pub struct DeadlineExceeded {
    /// The limit.
    pub limit: Duration,
}

/// Runs `work` for at most `limit`. At the deadline `work` is dropped.
///
/// # Errors
/// `work` was not done within `limit`.
pub async fn deadline<F: Future>(limit: Duration, work: F) -> Result<F::Output, DeadlineExceeded> {
    tokio::time::timeout(limit, work).await.map_err(|_| DeadlineExceeded { limit })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_done_in_time_returns_its_output() {
        assert_eq!(deadline(Duration::from_secs(1), async { 7 }).await, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_dropped_at_the_deadline() {
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
