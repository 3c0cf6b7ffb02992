//! What a lane's pool runs: a task, or the records of a pack.

use garenne_common::pool::{self, Pool};

use crate::{
    bridge::Job,
    execute::{Attempt, End, Ran},
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
    /// The ends of the records that had their turn, in order.
    Pack(Vec<End>),
}

impl Yield {
    /// What a [`Work::Task`] yields.
    pub(crate) fn task(self) -> Ran {
        let Self::Task(ran) = self else { unreachable!("each work has a job of its own kind") };
        ran
    }

    /// What a [`Work::Pack`] yields.
    pub(crate) fn pack(self) -> Vec<End> {
        let Self::Pack(ends) = self else { unreachable!("each work has a job of its own kind") };
        ends
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
            Self::Pack(attempt) => Yield::Pack(attempt.run(cx).await),
        }
    }
}
