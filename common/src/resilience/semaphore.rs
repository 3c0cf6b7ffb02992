//! A bound on how many do something at once, with a bound on how long the others wait.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore as Inner};

/// Hands out at most so many permits at once. Clones share them.
#[derive(Debug, Clone)]
pub struct Semaphore {
    inner: Arc<Inner>,
    permits: usize,
    wait: Duration,
}

/// Leave to go on; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    _inner: OwnedSemaphorePermit,
}

/// No permit was free in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("none of {permits} permits became free within {wait:?}")]
pub struct NoPermit {
    /// How many there are.
    pub permits: usize,
    /// How long was waited.
    pub wait: Duration,
}

impl Semaphore {
    /// `permits` at once; who asks for one more waits for at most `wait`.
    #[must_use]
    pub fn new(permits: usize, wait: Duration) -> Self {
        Self { inner: Arc::new(Inner::new(permits)), permits, wait }
    }

    /// Waits for a permit. Those who wait are served in the order in which they came.
    ///
    /// # Errors
    /// None was free in time.
    pub async fn acquire(&self) -> Result<Permit, NoPermit> {
        let waiting = Arc::clone(&self.inner).acquire_owned();
        match tokio::time::timeout(self.wait, waiting).await {
            // The inner one is never closed.
            Ok(Ok(permit)) => Ok(Permit { _inner: permit }),
            Ok(Err(_)) | Err(_) => Err(NoPermit { permits: self.permits, wait: self.wait }),
        }
    }

    /// How many permits are free now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.inner.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_is_told_and_takes_nothing() {
        let semaphore = Semaphore::new(1, Duration::from_secs(2));
        let held = semaphore.acquire().await.unwrap();
        let error = semaphore.acquire().await.unwrap_err();
        assert_eq!(error.to_string(), "none of 1 permits became free within 2s");
        drop(held);
        assert_eq!(semaphore.free(), 1);
        let _again = semaphore.acquire().await.unwrap();
        assert_eq!(semaphore.free(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_that_comes_free_in_time_is_had() {
        let semaphore = Semaphore::new(1, Duration::from_secs(2));
        let held = semaphore.acquire().await.unwrap();
        let other = semaphore.clone();
        let waits = tokio::spawn(async move { other.acquire().await.is_ok() });
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(held);
        assert!(waits.await.unwrap());
    }
}
