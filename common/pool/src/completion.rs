//! Receives the ending of a task.

use crate::{ending::Ending, task_id::TaskId};

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
