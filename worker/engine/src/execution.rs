//! An execution in a lane's pool: of a task, or of all records of a batch.

use std::sync::Arc;

use garenne_pool as pool;

use crate::{
    attempt::{Attempt, AttemptOutput},
    batch::Batch,
    handler::Team,
    panics,
};

/// A unit of work of the pool.
pub(crate) struct Execution {
    /// The attempt at the task, or what the attempts at the batch's records have in common.
    pub(crate) attempt: Attempt,
    pub(crate) batch: Option<Arc<Batch>>,
    /// Whether this is a shard that helps with the task.
    pub(crate) helps: bool,
}

impl Execution {
    pub(crate) fn new(attempt: Attempt, batch: Option<Arc<Batch>>) -> Self {
        Self { attempt, batch, helps: false }
    }
}

impl pool::Task for Execution {
    /// The output of a task's attempt. [`None`] for a helper, and for a batch, which keeps the ends of its records
    /// itself.
    type Output = Option<AttemptOutput>;

    fn label(&self) -> Option<&'static str> {
        Some(self.attempt.entry.kind)
    }

    fn shard(&self) -> Option<Self> {
        self.attempt.sharing.team()?;
        Some(Self { attempt: self.attempt.clone(), batch: None, helps: true })
    }

    fn join(first: Self::Output, next: Self::Output) -> Self::Output {
        first.or(next)
    }

    async fn run(self, cx: pool::TaskContext) -> Option<AttemptOutput> {
        let team = self.attempt.sharing.team().cloned();
        if self.helps {
            if let Some(team) = team {
                panics::RUNNING.scope(self.attempt.envelope, team.help(&cx)).await;
            }
            return None;
        }
        // However the attempt ends, its helpers end as well.
        let _end = team.as_deref().map(Team::end_on_drop);
        match self.batch {
            None => Some(self.attempt.execute(cx).await),
            Some(batch) => {
                batch.execute(self.attempt, cx).await;
                None
            }
        }
    }
}
