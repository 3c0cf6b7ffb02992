//! Spawns the background tasks and threads of a program.
//!
//! Each task has a name and a role. The role states what a panic or an error of the task means:
//!
//! | role | after a panic or an error | for |
//! | --- | --- | --- |
//! | [`restarting`] | the task runs again on the same state, after a growing pause | loops that other tasks rely on |
//! | [`essential`] | the process is told to stop, and the handle returns the failure | tasks that the process cannot replace |
//! | [`isolated`] | nothing else is affected; the handle returns the panic | a connection, a request, a shutdown step |
//!
//! Panics are logged with the task's name and counted in `garenne_background_panics_total{task}`. They are never
//! propagated to the task that awaits the handle.
//!
//! A role makes a [`Supervised`] task, which is spawned on the current runtime, on another runtime, in a
//! [`TaskTracker`] or in a [`JoinSet`], or awaited in place, and perhaps continued if its caller drops it. Blocking
//! closures and threads are isolated: [`spawn_blocking`], [`spawn_thread`]. To give one of them another role, await its
//! handle in a supervised task.
//!
//! ```
//! use garenne_common::supervise;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let sum = supervise::isolated("sum", async { 1 + 2 }).spawn();
//! assert_eq!(sum.await, Ok(3));
//! # }
//! ```

mod continued;
mod failure;
mod handle;
mod panics;
mod process;

use std::{
    future::{Future, IntoFuture},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

use futures_util::{FutureExt, TryFutureExt, future::BoxFuture};
use tokio::{
    runtime,
    sync::oneshot,
    task::{AbortHandle, JoinHandle, JoinSet},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::backoff::Backoff;

pub use continued::Continued;
use failure::panic_message;
pub use failure::{Failure, TaskResult};
pub use handle::{TaskHandle, ThreadHandle};
pub use panics::{count_panic, panics, panics_of};
#[cfg(feature = "simulation")]
pub use process::{Process, spawn_in_current};
use process::{owned, register};

/// A task with a name and a role, not spawned yet. To run it in place, await it.
#[derive(Debug)]
#[must_use = "a supervised task does nothing unless it is spawned or awaited"]
pub struct Supervised<F>(F);

// The roles are combinators and not `async` blocks: a block that awaits a future it was given stores it twice.

/// A task that only its own result depends on. A panic is logged and counted; an error is an ordinary result.
pub fn isolated<F: Future>(
    name: &'static str,
    task: F,
) -> Supervised<impl Future<Output = Result<F::Output, Failure>>> {
    Supervised(counted(name, task).inspect_err(move |failure| {
        tracing::error!(task = name, error = %failure, "background task failed");
    }))
}

/// A task that runs until `stop` is cancelled. If it panics, returns an error or returns before, the failure is
/// logged and `stop` is cancelled, so that the process shuts down.
pub fn essential<F>(
    name: &'static str,
    stop: CancellationToken,
    task: F,
) -> Supervised<impl Future<Output = Result<<F::Output as TaskResult>::Value, Failure>>>
where
    F: Future<Output: TaskResult>,
{
    Supervised(counted(name, task).map(move |result| {
        let result = match result.and_then(TaskResult::into_result) {
            Ok(_) if !stop.is_cancelled() => Err(Failure::Returned),
            result => result,
        };
        if let Err(failure) = &result {
            tracing::error!(task = name, error = %failure, "background task failed, stopping the process");
            stop.cancel();
        }
        result
    }))
}

/// A task that runs on `state` until it returns `()` or `Ok`. After a panic or an error it is started again on the
/// same state, with growing pauses of at most a second.
pub fn restarting<S, R: TaskResult>(
    name: &'static str,
    state: S,
    task: impl for<'a> Fn(&'a mut S) -> BoxFuture<'a, R>,
) -> Supervised<impl Future<Output = Result<R::Value, Failure>>> {
    restarting_with(name, state, task, |_| {})
}

/// As [`restarting`]. `on_failure` is called with each failure, before the pause.
pub fn restarting_with<S, R: TaskResult>(
    name: &'static str,
    mut state: S,
    task: impl for<'a> Fn(&'a mut S) -> BoxFuture<'a, R>,
    mut on_failure: impl FnMut(&Failure),
) -> Supervised<impl Future<Output = Result<R::Value, Failure>>> {
    Supervised(async move {
        let mut backoff = Backoff::reconnect();
        loop {
            // `async` so that a panic of the closure itself is caught too.
            let attempt = counted(name, async { task(&mut state).await }).await;
            let failure = match attempt.and_then(TaskResult::into_result) {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            let wait = backoff.next_wait();
            tracing::error!(task = name, error = %failure, ?wait, "background task failed, restarting");
            on_failure(&failure);
            tokio::time::sleep(wait).await;
        }
    })
}

impl<T, F> Supervised<F>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    /// Spawns the task on the current runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn spawn(self) -> TaskHandle<T> {
        spawned(tokio::spawn(owned(self.0)))
    }

    /// Spawns the task on `runtime`.
    pub fn spawn_on(self, runtime: &runtime::Handle) -> TaskHandle<T> {
        spawned(runtime.spawn(owned(self.0)))
    }

    /// Spawns the task on the current runtime; `tracker` waits for it.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn spawn_in(self, tracker: &TaskTracker) -> TaskHandle<T> {
        spawned(tracker.spawn(owned(self.0)))
    }

    /// Spawns the task on `runtime`; `tracker` waits for it.
    pub fn spawn_in_on(self, tracker: &TaskTracker, runtime: &runtime::Handle) -> TaskHandle<T> {
        spawned(tracker.spawn_on(owned(self.0), runtime))
    }

    /// Spawns the task on the current runtime and adds it to `set`, which aborts it when it is dropped.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn spawn_into(self, set: &mut JoinSet<Result<T, Failure>>) -> AbortHandle {
        let task = set.spawn(owned(self.0));
        register(|| task.clone());
        task
    }

    /// Runs the task in place when it is awaited. If its caller drops it before it completes, the rest is spawned on
    /// `runtime`.
    pub fn continued_on(self, runtime: &runtime::Handle) -> Continued<F> {
        Continued::new(self.0, runtime)
    }
}

fn spawned<T>(task: JoinHandle<Result<T, Failure>>) -> TaskHandle<T> {
    register(|| task.abort_handle());
    TaskHandle::new(task)
}

impl<F: Future> IntoFuture for Supervised<F> {
    type Output = F::Output;
    type IntoFuture = F;

    fn into_future(self) -> F {
        self.0
    }
}

/// Runs an isolated closure on a thread of the current runtime that may block.
///
/// # Panics
/// Outside a tokio runtime.
pub fn spawn_blocking<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> TaskHandle<T> {
    TaskHandle::new(tokio::task::spawn_blocking(move || caught_blocking(name, work)))
}

/// Starts an isolated thread of this name.
///
/// # Errors
/// The operating system cannot start another thread.
pub fn spawn_thread<T: Send + 'static>(
    name: &'static str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<ThreadHandle<T>> {
    let (sender, result) = oneshot::channel();
    let body = move || {
        // Fails if the thread was detached.
        let _ = sender.send(caught_blocking(name, body));
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
    Ok(ThreadHandle(result))
}

/// Runs a future in place. A panic in it becomes an error with the panic's message; it is neither logged nor counted.
///
/// # Errors
/// The message of the panic.
pub fn caught<F: Future>(task: F) -> impl Future<Output = Result<F::Output, String>> {
    AssertUnwindSafe(task).catch_unwind().map_err(panic_message)
}

/// Runs a closure in place, as [`caught`] does a future.
///
/// # Errors
/// The message of the panic.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(panic_message)
}

/// As [`caught`], with the panic counted under this name.
fn counted<F: Future>(name: &'static str, task: F) -> impl Future<Output = Result<F::Output, Failure>> {
    caught(task).map_err(move |message| {
        count_panic(name);
        Failure::Panicked(message)
    })
}

fn caught_blocking<T>(name: &'static str, work: impl FnOnce() -> T) -> Result<T, Failure> {
    catch(work).map_err(|message| {
        count_panic(name);
        let failure = Failure::Panicked(message);
        tracing::error!(task = name, error = %failure, "background thread failed");
        failure
    })
}

#[cfg(test)]
mod tests;
