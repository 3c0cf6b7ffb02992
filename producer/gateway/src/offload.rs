//! CPU-bound work on large bodies, kept off the runtime's threads.
//!
//! A runtime thread that parses a large body serves nobody else meanwhile. Large bodies are parsed on blocking
//! threads, few at a time, so that they cannot take all cores either.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, time::timeout};

use crate::refusal::Refusal;

/// How long a large body waits for its turn.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// At most this many large bodies are parsed at once, on machines with many cores.
const MOST_THREADS: usize = 4;

/// Runs work on a bounded number of blocking threads.
#[derive(Clone, Debug)]
pub(super) struct Offload {
    permits: Arc<Semaphore>,
    retry_after: Duration,
}

impl Offload {
    pub(super) fn new(retry_after: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { permits: Arc::new(Semaphore::new((cores / 2).clamp(1, MOST_THREADS))), retry_after }
    }

    /// Runs `work` to its end, also when this future is dropped: what the work holds is released when it has ended.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when its turn does not come in time.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let overloaded = || Refusal::Overloaded {
            why: format!("too many large requests wait to be parsed (for {LONGEST_WAIT:?})"),
            retry_after: self.retry_after,
        };
        let permit = timeout(LONGEST_WAIT, Arc::clone(&self.permits).acquire_owned()).await;
        let permit = permit.ok().and_then(Result::ok).ok_or_else(overloaded)?;
        let working = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        match working.await {
            Ok(done) => Ok(done),
            // As if it had happened here: the connection ends and the panic is logged.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is shutting down.
            Err(_) => Err(overloaded()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_waits_for_its_turn_and_is_then_refused() {
        let offload = Offload { permits: Arc::new(Semaphore::new(1)), retry_after: Duration::from_secs(1) };
        assert_eq!(offload.run(|| 7).await.unwrap(), 7);
        let held = Arc::clone(&offload.permits).acquire_owned().await.unwrap();
        tokio::time::pause();
        let refused = offload.run(|| 7).await.unwrap_err();
        assert_eq!(
            (refused.status(), refused.to_string().as_str()),
            (503, "too many large requests wait to be parsed (for 5s)")
        );
        drop(held);
        tokio::time::resume();
        assert_eq!(offload.run(|| 8).await.unwrap(), 8);
    }
}
