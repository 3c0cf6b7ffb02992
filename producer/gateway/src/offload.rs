//! Runs CPU-bound work on blocking threads.
//!
//! A runtime thread that parses a large body serves no other connection meanwhile. Large bodies are parsed on blocking
//! threads, few at a time, so that they do not occupy all cores.

use std::time::Duration;

use garenne_common::{
    resilience::Semaphore,
    supervise::{self, Failure},
};

use crate::refusal::Refusal;

/// How long a large body may wait for a thread.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Most large bodies that are parsed at once; fewer on machines with few cores.
const MAX_THREADS: usize = 4;

/// Runs work on a bounded number of blocking threads.
#[derive(Clone, Debug)]
pub(super) struct Offload {
    permits: Semaphore,
    retry_after: Duration,
}

impl Offload {
    pub(super) fn new(retry_after: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { permits: Semaphore::new((cores / 2).clamp(1, MAX_THREADS), WAIT_TIMEOUT), retry_after }
    }

    /// Runs `work` on a blocking thread. If the future is dropped, started work still runs to its end. Refused if no
    /// thread is free in time.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let overloaded = || {
            let why = format!(
                "too many large requests are waiting to be parsed (no thread was free within {WAIT_TIMEOUT:?})"
            );
            Refusal::overloaded(why, self.retry_after)
        };
        let permit = self.permits.acquire().await.map_err(|_| overloaded())?;
        let working = supervise::spawn_blocking("parse", move || {
            let _permit = permit;
            work()
        });
        match working.await {
            Ok(done) => Ok(done),
            // The panic continues here: it ends the connection and is logged.
            Err(failure @ Failure::Panicked(_)) => std::panic::resume_unwind(Box::new(failure.to_string())),
            // The runtime is shutting down.
            Err(_) => Err(overloaded()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_without_a_free_thread_is_refused_after_the_timeout() {
        let offload =
            Offload { permits: Semaphore::new(1, WAIT_TIMEOUT), retry_after: Duration::from_secs(1) };
        assert_eq!(offload.run(|| 7).await.unwrap(), 7);
        let held = offload.permits.acquire().await.unwrap();
        tokio::time::pause();
        let refused = offload.run(|| 7).await.unwrap_err();
        assert_eq!(
            (refused.status.as_u16(), refused.message.as_str()),
            (503, "too many large requests are waiting to be parsed (no thread was free within 5s)")
        );
        drop(held);
        tokio::time::resume();
        assert_eq!(offload.run(|| 8).await.unwrap(), 8);
    }
}
