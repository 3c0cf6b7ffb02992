//! A semaphore with a limit on the waiting time.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore as Inner};

/// A fixed number of permits. Clones share them.
#[derive(Debug, Clone)]
pub struct Semaphore {
    inner: Arc<Inner>,
    permits: usize,
    wait: Duration,
}

/// No permit was free in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("none of {permits} permits became free within {wait:?}")]
pub struct NoPermit {
    /// Number of permits in total.
    pub permits: usize,
    /// The waiting time.
    pub wait: Duration,
}

impl Semaphore {
    /// A semaphore with `permits` permits, for which a caller waits at most `wait`.
    #[must_use]
    pub fn new(permits: usize, wait: Duration) -> Self {
        Self { inner: Arc::new(Inner::new(permits)), permits, wait }
    }

    /// Waits for a permit; dropping it returns it. Waiting callers are served in order.
    ///
    /// # Errors
    /// No permit became free in time.
    pub async fn acquire(&self) -> Result<OwnedSemaphorePermit, NoPermit> {
        let waiting = Arc::clone(&self.inner).acquire_owned();
        match tokio::time::timeout(self.wait, waiting).await {
            // The inner semaphore is never closed.
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(NoPermit { permits: self.permits, wait: self.wait }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_times_out_takes_no_permit() {
        let semaphore = Semaphore::new(1, Duration::from_secs(2));
        let held = semaphore.acquire().await.unwrap();
        let error = semaphore.acquire().await.unwrap_err();
        assert_eq!(error.to_string(), "none of 1 permits became free within 2s");
        drop(held);
        assert_eq!(semaphore.inner.available_permits(), 1);
        let _again = semaphore.acquire().await.unwrap();
        assert_eq!(semaphore.inner.available_permits(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_that_becomes_free_in_time_is_acquired() {
        let semaphore = Semaphore::new(1, Duration::from_secs(2));
        let held = semaphore.acquire().await.unwrap();
        let other = semaphore.clone();
        let waits = tokio::spawn(async move { other.acquire().await.is_ok() });
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(held);
        assert!(waits.await.unwrap());
    }
}
