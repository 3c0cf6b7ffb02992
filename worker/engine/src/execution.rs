//! What a lane's pool runs: a task, or the records of a batch.

use garenne_pool::{self as pool, Pool};

use crate::{
    batch::BatchAttempt,
    execute::{Attempt, AttemptOutput},
    pipeline::InFlight,
};

/// A lane's pool.
pub(crate) type LanePool = Pool<Execution, InFlight>;

/// A task of the pool.
pub(crate) enum Execution {
    Task(Attempt),
    Pack(BatchAttempt),
}

/// What it yields.
pub(crate) enum ExecutionOutput {
    Task(AttemptOutput),
    /// The ends of its records are noted on the way.
    Pack,
}

impl ExecutionOutput {
    /// What a [`Execution::Task`] yields.
    pub(crate) fn task(self) -> AttemptOutput {
        let Self::Task(ran) = self else { unreachable!("each work has a job of its own kind") };
        ran
    }

    /// What a [`Execution::Pack`] yields.
    pub(crate) fn batch(self) {
        let Self::Pack = self else { unreachable!("each work has a job of its own kind") };
    }
}

impl pool::Task for Execution {
    type Output = ExecutionOutput;

    fn label(&self) -> Option<&'static str> {
        Some(match self {
            Self::Task(attempt) => attempt.entry.kind,
            Self::Pack(attempt) => attempt.entry.kind,
        })
    }

    async fn run(self, cx: pool::TaskContext) -> ExecutionOutput {
        match self {
            Self::Task(attempt) => ExecutionOutput::Task(attempt.run(cx).await),
            Self::Pack(attempt) => {
                attempt.run(cx).await;
                ExecutionOutput::Pack
            }
        }
    }
}
