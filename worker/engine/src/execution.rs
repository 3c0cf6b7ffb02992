//! What a lane's pool runs: a task, or all records of a batch.

use garenne_pool as pool;

use crate::{
    batch::BatchAttempt,
    execute::{Attempt, AttemptOutput},
};

/// A unit of work of the pool.
pub(crate) enum Execution {
    Task(Attempt),
    Batch(BatchAttempt),
}

/// The output of an [`Execution`].
pub(crate) enum ExecutionOutput {
    Task(AttemptOutput),
    /// The ends of a batch's records are not part of its output: they are kept in
    /// [`AttemptEnds`](crate::batch::AttemptEnds), because a batch that is given up has no output.
    Batch,
}

impl ExecutionOutput {
    /// The output of an [`Execution::Task`].
    pub(crate) fn task(self) -> AttemptOutput {
        let Self::Task(output) = self else { unreachable!("a task's completion belongs to a task") };
        output
    }

    /// The output of an [`Execution::Batch`].
    pub(crate) fn batch(self) {
        let Self::Batch = self else { unreachable!("a batch's completion belongs to a batch") };
    }
}

impl pool::Task for Execution {
    type Output = ExecutionOutput;

    fn label(&self) -> Option<&'static str> {
        Some(match self {
            Self::Task(attempt) => attempt.entry.kind,
            Self::Batch(attempt) => attempt.entry.kind,
        })
    }

    async fn run(self, cx: pool::TaskContext) -> ExecutionOutput {
        match self {
            Self::Task(attempt) => ExecutionOutput::Task(attempt.execute(cx).await),
            Self::Batch(attempt) => {
                attempt.execute(cx).await;
                ExecutionOutput::Batch
            }
        }
    }
}
