//! Tasks as a pool runs them, and the receivers of their endings.

use std::future::Future;

use crate::{context::TaskContext, ending::Ending, id::TaskId};

/// Work that a worker of the pool runs once.
pub trait Task: Send + Sized + 'static {
    /// The result of the work. Passed to the [`Completion`].
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

/// Receives the ending of a task.
///
/// A completion carries what the task was submitted for, such as a delivery to acknowledge or a connection to
/// close. The pool calls it exactly once for each admitted task; a refused task is returned with its completion.
/// A panic in one of these methods is logged and affects neither the worker nor other tasks.
pub trait Completion<O>: Send + 'static {
    /// Called exactly once, on the thread that ended the task. Must not block.
    fn complete(self, ending: Ending<O>);

    /// The trace that the task belongs to. Added to the pool's log lines about this task.
    fn trace_id(&self) -> Option<&str> {
        None
    }

    /// Called before [`complete`](Self::complete) if the task started and panicked or was given up, so that
    /// partial effects can be undone.
    fn compensate(&mut self, id: &TaskId, ending: &Ending<O>) {
        let _ = (id, ending);
    }
}

/// Ignores the ending.
impl<O> Completion<O> for () {
    fn complete(self, _ending: Ending<O>) {}
}

/// Turns a closure into a [`Completion`].
pub struct OnEnd<F>(
    /// Called with the ending.
    pub F,
);

impl<O, F: FnOnce(Ending<O>) + Send + 'static> Completion<O> for OnEnd<F> {
    fn complete(self, ending: Ending<O>) {
        (self.0)(ending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_that_names_no_trace_has_none() {
        assert_eq!(Completion::<()>::trace_id(&()), None);
        assert_eq!(Completion::<()>::trace_id(&OnEnd(|_: Ending<()>| ())), None);
    }
}
