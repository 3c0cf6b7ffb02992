//! What a lane's pool runs: a task, or all records of a batch.

use std::sync::Arc;

use garenne_pool as pool;

use crate::{
    batch::Batch,
    execute::{Attempt, AttemptOutput},
};

/// A unit of work of the pool.
pub(crate) struct Execution {
    /// The attempt at the task, or what the attempts at the batch's records have in common.
    pub(crate) attempt: Attempt,
    pub(crate) batch: Option<Arc<Batch>>,
}

impl pool::Task for Execution {
    /// The output of a task's attempt. [`None`] for a batch, which keeps the ends of its records itself.
    type Output = Option<AttemptOutput>;

    fn label(&self) -> Option<&'static str> {
        Some(self.attempt.entry.kind)
    }

    async fn run(self, cx: pool::TaskContext) -> Option<AttemptOutput> {
        match self.batch {
            None => Some(self.attempt.execute(cx).await),
            Some(batch) => {
                batch.execute(self.attempt, cx).await;
                None
            }
        }
    }
}
