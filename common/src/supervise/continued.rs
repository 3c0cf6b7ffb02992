//! Supervised futures that run in place and outlive a caller that drops them.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::runtime::Handle;

use super::process::{owned, register};

/// A future that is polled in place. If it is dropped before it completes, the rest is spawned on its runtime.
///
/// Compared with a spawned task, a future that its caller awaits to the end needs no wake-up of another thread. Its
/// timers and the tasks that it spawns belong to its runtime wherever it is polled, so that they outlive the caller's
/// runtime.
#[derive(Debug)]
#[must_use = "the future runs in place only while it is awaited"]
pub struct Continued<F: Future<Output: Send> + Send + 'static> {
    /// `None` after the end.
    task: Option<Pin<Box<F>>>,
    runtime: Handle,
}

impl<F: Future<Output: Send> + Send + 'static> Continued<F> {
    pub(super) fn new(task: F, runtime: &Handle) -> Self {
        Self { task: Some(Box::pin(task)), runtime: runtime.clone() }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for Continued<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { task, runtime } = &mut *self;
        let running = task.as_mut().expect("a future is not polled after its end");
        let _entered = runtime.enter();
        let output = ready!(running.as_mut().poll(cx));
        *task = None;
        Poll::Ready(output)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Continued<F> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            let spawned = self.runtime.spawn(owned(task));
            register(|| spawned.abort_handle());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use tokio::{runtime::Builder, sync::oneshot, time::timeout};

    use super::super::{Failure, isolated, panics_of};
    use super::*;

    #[tokio::test]
    async fn a_future_that_is_awaited_runs_in_place_and_in_the_context_of_its_runtime() {
        let other = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let here = std::thread::current().id();
        let task = isolated("test continued", async {
            let thread = std::thread::current().id();
            (thread, tokio::spawn(async { tokio::runtime::Handle::current().id() }).await.unwrap())
        });
        assert_eq!(task.continued_on(other.handle()).await, Ok((here, other.handle().id())));
        other.shutdown_background();
    }

    #[tokio::test]
    async fn a_future_that_is_dropped_continues_on_its_runtime_and_only_once() {
        let (confirm, confirmed) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let mut task = isolated("test dropped", async move {
            confirmed.await.unwrap();
            end.send(tokio::task::id()).unwrap();
        })
        .continued_on(&Handle::current());
        assert!(poll!(&mut task).is_pending());
        drop(task);
        confirm.send(()).unwrap();
        ended.await.expect("a task of its own ran the rest");
        assert_eq!(panics_of("test dropped"), 0);
    }

    #[tokio::test]
    async fn a_timer_outlives_the_runtime_that_started_it() {
        let (end, ended) = oneshot::channel();
        let (begin, begun) = oneshot::channel();
        let runtime = Handle::current();
        let caller = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let task = isolated("test timer", async move {
            begin.send(()).unwrap();
            let waited = timeout(std::time::Duration::from_millis(50), std::future::pending::<()>()).await;
            end.send(waited.is_err()).unwrap();
        });
        caller.spawn(task.continued_on(&runtime));
        begun.await.unwrap();
        caller.shutdown_background();
        assert_eq!(ended.await, Ok(true));
        assert_eq!(panics_of("test timer"), 0);
    }

    #[tokio::test]
    async fn a_panic_is_returned_in_place_and_counted_after_a_drop_as_well() {
        let panics = |begin: oneshot::Receiver<()>| {
            isolated("test continued panic", async move {
                let _ = begin.await;
                std::panic::resume_unwind(Box::new("broken"))
            })
            .continued_on(&Handle::current())
        };
        let (begin, begun) = oneshot::channel();
        begin.send(()).unwrap();
        let failed: Result<(), _> = panics(begun).await;
        assert_eq!(failed, Err(Failure::Panicked("broken".to_owned())));

        let (begin, begun) = oneshot::channel();
        drop::<Continued<_>>(panics(begun));
        drop(begin);
        while panics_of("test continued panic") < 2 {
            tokio::task::yield_now().await;
        }
    }
}
