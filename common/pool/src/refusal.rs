//! Why a task was not admitted.

use std::fmt;

/// Why a task was not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The pool holds as many queued and running tasks as it may.
    #[error("queue full: the limit is {limit} queued and running tasks")]
    QueueFull {
        /// The limit, [`PoolConfig::queue`](crate::PoolConfig::queue).
        limit: usize,
    },
    /// The task asks for more workers than the pool may have.
    #[error("too many workers: {asked} requested, the maximum is {max}")]
    TooManyWorkers {
        /// The width of the task.
        asked: u32,
        /// The maximum number of workers.
        max: usize,
    },
    /// The task's width is 0, or above 1 although [`Task::shard`](crate::Task::shard) does not return shards.
    #[error("width is {asked}: must be 1 for a task that cannot be sharded")]
    NotSharded {
        /// The width of the task.
        asked: u32,
    },
    /// The pool is shutting down.
    #[error("pool closed")]
    PoolClosed,
}

/// A [`Refusal`] together with what was refused.
#[derive(thiserror::Error)]
#[error("{reason}")]
pub struct Refused<T> {
    /// Why it was refused.
    #[source]
    pub reason: Refusal,
    /// The submission, unchanged.
    pub task: T,
}

/// Without the submission, which need not implement it.
impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("reason", &self.reason).finish_non_exhaustive()
    }
}
