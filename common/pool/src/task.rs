//! What a pool runs.

use std::future::Future;

use crate::context::TaskContext;

/// Work that a worker of the pool runs once.
pub trait Task: Send + Sized + 'static {
    /// The result of the work. Passed to the [`Completion`](crate::Completion).
    type Output: Send + 'static;

    /// Does the work, in place on the worker.
    ///
    /// A short task should not wait for long. A long task should watch [`TaskContext::cancelled`] or
    /// [`TaskContext::token`], and return soon after it was cancelled.
    fn run(self, cx: TaskContext) -> impl Future<Output = Self::Output> + Send;

    /// Returns another shard of this task, for tasks that ask for several workers.
    ///
    /// The default is `None`: a task of a width above 1 is then refused.
    #[must_use]
    fn shard(&self) -> Option<Self> {
        None
    }

    /// A name for snapshots besides the id, such as the kind of the work.
    ///
    /// Called when the task starts, with a lock of the pool held: it must not call the pool.
    #[must_use]
    fn label(&self) -> Option<&'static str> {
        None
    }

    /// Joins the outputs of two shards, in the order in which they ended. The default keeps the first.
    #[must_use]
    fn join(first: Self::Output, next: Self::Output) -> Self::Output {
        let _ = next;
        first
    }
}
