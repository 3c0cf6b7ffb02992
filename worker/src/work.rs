//! What a lane's pool runs: a task, or the records of a pack.

use garenne_pool::{self as pool, Pool};

use crate::{
    bridge::Job,
    execute::{Attempt, Ran},
    pack::PackAttempt,
};

/// A lane's pool.
pub(crate) type LanePool = Pool<Work, Job>;

/// A task of the pool.
pub(crate) enum Work {
    Task(Attempt),
    Pack(PackAttempt),
}

/// What it yields.
pub(crate) enum Yield {
    Task(Ran),
    /// The ends of its records are noted on the way.
    Pack,
}

impl Yield {
    /// What a [`Work::Task`] yields.
    pub(crate) fn task(self) -> Ran {
        let Self::Task(ran) = self else { unreachable!("each work has a job of its own kind") };
        ran
    }

    /// What a [`Work::Pack`] yields.
    pub(crate) fn pack(self) {
        let Self::Pack = self else { unreachable!("each work has a job of its own kind") };
    }
}

impl pool::Task for Work {
    type Output = Yield;

    fn label(&self) -> Option<&'static str> {
        Some(match self {
            Self::Task(attempt) => attempt.entry.kind,
            Self::Pack(attempt) => attempt.entry.kind,
        })
    }

    async fn run(self, cx: pool::TaskContext) -> Yield {
        match self {
            Self::Task(attempt) => Yield::Task(attempt.run(cx).await),
            Self::Pack(attempt) => {
                attempt.run(cx).await;
                Yield::Pack
            }
        }
    }
}
