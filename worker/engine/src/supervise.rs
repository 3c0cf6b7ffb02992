//! Keeps the worker's own background tasks at work: a panic in one of them is logged, counted, and never the
//! silent end of what others rely on.

use std::{future::Future, panic::AssertUnwindSafe};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_common::backoff::Backoff;
use garenne_common::supervise;
use garenne_pool::panic_message;
use prometheus::Registry;

/// Counts panics of the worker's own code, by task.
#[derive(Clone, Debug)]
pub(crate) struct Panics;

impl Panics {
    /// The process has one counter, which [`Metrics`](garenne_common::telemetry::Metrics) exports.
    pub(crate) fn register(_: &Registry) -> Self {
        Self
    }

    #[expect(clippy::unused_self, reason = "callers hold the counter as a value")]
    pub(crate) fn count(&self, task: &'static str) {
        supervise::count_panic(task);
    }

    #[cfg(test)]
    #[expect(clippy::unused_self, reason = "callers hold the counter as a value")]
    pub(crate) fn counted(&self, task: &'static str) -> u64 {
        supervise::panics_of(task)
    }
}

/// Runs a future; a panic in it is an error with the panic's message.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(panic_message)
}

/// Runs `task` on a state until it returns. After a panic it is started again on the same state, with growing
/// pauses of at most a second; `problem` is told of each.
pub(crate) async fn restarting<S>(
    name: &'static str,
    panics: Panics,
    mut state: S,
    task: impl for<'a> Fn(&'a mut S) -> BoxFuture<'a, ()>,
    problem: impl Fn(String),
) {
    let mut backoff = Backoff::reconnect();
    while let Err(panic) = caught(task(&mut state)).await {
        panics.count(name);
        let wait = backoff.next_wait();
        tracing::error!(task = name, panic, ?wait, "a background task panicked, it will be started again");
        problem(panic);
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        time::Duration,
    };

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_started_again_until_it_returns() {
        let (registry, told) = (Registry::new(), RefCell::new(Vec::new()));
        let panics = Panics::register(&registry);
        let (runs, begun) = (Cell::new(0), Instant::now());
        let problem = |problem| told.borrow_mut().push(problem);
        let run = |state: &mut u32| {
            *state += 1;
            runs.set(*state);
            *state
        };
        restarting(
            "sweep",
            panics.clone(),
            0,
            |state| {
                let run = run(state);
                async move { assert!(run > 3, "run {run}") }.boxed()
            },
            problem,
        )
        .await;
        assert_eq!((runs.get(), panics.counted("sweep"), panics.counted("other")), (4, 3, 0));
        assert_eq!(told.into_inner(), ["run 1", "run 2", "run 3"]);
        assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn what_does_not_panic_is_answered() {
        assert_eq!(caught(async { 7 }).await, Ok(7));
    }
}
