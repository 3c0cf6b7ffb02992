//! Handles of supervised tasks and threads.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    sync::oneshot,
    task::{AbortHandle, JoinHandle},
};
use tokio_util::task::AbortOnDropHandle;

use super::Failure;

/// A spawned task. Await it for the result of the task.
///
/// Dropping the handle aborts the task. A closure that was passed to [`spawn_blocking`](super::spawn_blocking) runs to
/// its end if it has started.
#[derive(Debug)]
#[must_use = "dropping the handle aborts the task: await it, keep it, or call `detach`"]
pub struct TaskHandle<T>(AbortOnDropHandle<Result<T, Failure>>);

impl<T> TaskHandle<T> {
    pub(super) fn new(task: JoinHandle<Result<T, Failure>>) -> Self {
        Self(AbortOnDropHandle::new(task))
    }

    /// Aborts the task at its next `await`.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Lets the task run without a handle to its result. Its failures are still logged and counted.
    pub fn detach(self) -> AbortHandle {
        self.0.detach().abort_handle()
    }
}

impl<T> Future for TaskHandle<T> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|joined| joined.unwrap_or_else(|error| Err(Failure::of_join(error))))
    }
}

/// A spawned thread. Await it for the result of the thread. A thread cannot be aborted.
#[derive(Debug)]
#[must_use = "await the thread, keep its handle, or call `detach`"]
pub struct ThreadHandle<T>(pub(super) oneshot::Receiver<Result<T, Failure>>);

impl<T> ThreadHandle<T> {
    /// Lets the thread run without a handle to its result. Its panic is still logged and counted.
    pub fn detach(self) {}
}

impl<T> Future for ThreadHandle<T> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|result| result.unwrap_or(Err(Failure::Aborted)))
    }
}
