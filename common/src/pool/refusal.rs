//! A task the pool would not take, given back.

use std::fmt;

/// Why a task was not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// As many tasks are waiting and running as the pool may hold.
    #[error("queue full: {limit} tasks are waiting or running, the most allowed")]
    QueueFull {
        /// The bound, in tasks.
        limit: usize,
    },
    /// The task asks for more workers than the pool may have.
    #[error("too many workers: {asked} asked for, at most {max}")]
    TooManyWorkers {
        /// Its width.
        asked: u32,
        /// The pool's maximum.
        max: usize,
    },
    /// The task asks for several workers, or for none, and is not made of that many shards.
    #[error("width is {asked}: must be 1 for a task that cannot be sharded")]
    NotSharded {
        /// Its width.
        asked: u32,
    },
    /// A shutdown has begun.
    #[error("pool closed")]
    PoolClosed,
}

/// A refusal with what was refused.
pub struct Refused<T> {
    /// Why.
    pub reason: Refusal,
    /// What was submitted, untouched.
    pub task: T,
}

impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<T> std::error::Error for Refused<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}
