//! Retries with pauses, on top of backon.

use std::sync::Arc;

use backon::Retryable;

use crate::backoff::Backoff;

type Classifier<E> = Arc<dyn Fn(&E) -> bool + Send + Sync>;

/// Repeats an operation after transient errors.
pub struct Retry<E> {
    backoff: Backoff,
    retries: usize,
    is_transient: Classifier<E>,
}

/// Not derived, because that would require `E: Clone`.
impl<E> Clone for Retry<E> {
    fn clone(&self) -> Self {
        let (backoff, is_transient) = (self.backoff.clone(), Arc::clone(&self.is_transient));
        Self { backoff, retries: self.retries, is_transient }
    }
}

impl<E> Retry<E> {
    /// Up to `retries` attempts after the first, whatever the error. Each [`run`](Self::run) starts with the first pause
    /// of `backoff`.
    #[must_use]
    pub fn new(mut backoff: Backoff, retries: usize) -> Self {
        backoff.reset();
        Self { backoff, retries, is_transient: Arc::new(|_| true) }
    }

    /// Retries only the errors for which `is_transient` is true; any other is returned at once.
    #[must_use]
    pub fn when(mut self, is_transient: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        self.is_transient = Arc::new(is_transient);
        self
    }
    /// Makes attempts until one succeeds, fails with an error that is not retried, or was the last.
    ///
    /// # Errors
    /// That of the last attempt.
    pub async fn run<T, F: Future<Output = Result<T, E>>>(&self, attempt: impl FnMut() -> F) -> Result<T, E> {
        let pauses = self.backoff.clone().take(self.retries);
        attempt.retry(pauses).sleep(tokio::time::sleep).when(|error| (self.is_transient)(error)).await
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, time::Duration};

    use tokio::time::Instant;

    use super::*;

    /// Always fails; returns the start of each attempt in whole seconds, and the last error.
    async fn attempts(retry: &Retry<u32>) -> (Vec<u64>, Result<(), u32>) {
        let begun = Instant::now();
        let made = RefCell::new(Vec::new());
        let result = retry
            .run(|| async {
                made.borrow_mut().push(begun.elapsed().as_secs());
                Err(u32::try_from(made.borrow().len()).unwrap())
            })
            .await;
        (made.into_inner(), result)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn constant_pauses() {
        let retry = Retry::new(Backoff::constant(SECOND), 3);
        assert_eq!(attempts(&retry).await, (vec![0, 1, 2, 3], Err(4)));
    }

    #[tokio::test(start_paused = true)]
    async fn exponential_pauses_with_and_without_a_limit() {
        let free = Retry::new(Backoff::limited(SECOND, Duration::MAX), 8);
        assert_eq!(attempts(&free).await.0, [0, 1, 3, 7, 15, 31, 63, 127, 255]);
        let limited = Retry::new(Backoff::limited(SECOND, 4 * SECOND), 5);
        assert_eq!(attempts(&limited).await.0, [0, 1, 3, 7, 11, 15]);
    }

    #[tokio::test(start_paused = true)]
    async fn jitter_shortens_a_pause_by_at_most_half() {
        let retry = Retry::new(Backoff::constant(10 * SECOND).with_jitter(), 1);
        let mut pauses = Vec::new();
        for _ in 0..20 {
            pauses.push(attempts(&retry).await.0[1]);
        }
        assert!(pauses.iter().all(|pause| (5..=10).contains(pause)), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_selected_errors_are_retried() {
        let pauses = Backoff::constant(SECOND);
        let classified = Retry::new(pauses.clone(), 9).when(|error| *error < 3);
        assert_eq!(attempts(&classified).await, (vec![0, 1, 2], Err(3)));
        let listed = Retry::new(pauses.clone(), 9).when(|error| [1].contains(error));
        assert_eq!(attempts(&listed).await, (vec![0, 1], Err(2)));
        let none = Retry::new(pauses, 0);
        assert_eq!(attempts(&none).await, (vec![0], Err(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_success_ends_the_attempts() {
        let retry: Retry<u32> = Retry::new(Backoff::constant(SECOND), 9).clone();
        let tries = RefCell::new(0);
        let result = retry
            .run(|| async {
                *tries.borrow_mut() += 1;
                if *tries.borrow() < 3 { Err(0) } else { Ok("done") }
            })
            .await;
        assert_eq!((result, tries.into_inner()), (Ok("done"), 3));
    }
}
