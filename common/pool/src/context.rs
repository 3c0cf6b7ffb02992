//! The context of a running task.

use std::sync::{Arc, LazyLock, OnceLock};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{atomic::cancel_state::Epoch, cancel_signal::CancelSignal, ending::Cause, id::TaskId};

/// The context of a running task: its properties, and how it learns that it was cancelled.
pub struct TaskContext {
    pub(crate) id: TaskId,
    pub(crate) shard: u32,
    pub(crate) width: u32,
    pub(crate) long: Option<LongContext>,
}

/// The part of the context that only a long task has.
pub(crate) struct LongContext {
    pub(crate) signal: Arc<CancelSignal>,
    pub(crate) epoch: Epoch,
    pub(crate) deadline: Instant,
    pub(crate) token: OnceLock<CancellationToken>,
    /// For helpers only.
    pub(crate) queue: Option<Arc<dyn Queue>>,
}

/// The tasks that wait in a pool.
pub(crate) trait Queue: Send + Sync {
    fn tasks_wait(&self) -> bool;
}

/// The token of short tasks, which is never cancelled.
static UNUSED_TOKEN: LazyLock<CancellationToken> = LazyLock::new(CancellationToken::new);

impl TaskContext {
    /// A context for a short task that runs as a part of another task.
    #[must_use]
    pub fn short(id: impl Into<TaskId>) -> Self {
        Self { id: id.into(), shard: 0, width: 1, long: None }
    }

    /// The id of the task.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// The index of this shard, counted from 0.
    #[must_use]
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// The number of shards; 1 for an ordinary task.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Whether another task waits for a worker, so that a helper should return. Always false if this is no
    /// [helper](crate::Spec::helped_by) or the task is short. Takes a lock of the pool: ask it about once a
    /// millisecond.
    #[must_use]
    pub fn tasks_wait(&self) -> bool {
        let queue = self.long.as_ref().and_then(|long| long.queue.as_deref());
        queue.is_some_and(Queue::tasks_wait)
    }

    /// When the task will be cancelled; `None` for a short task.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.long.as_ref().map(|long| long.deadline)
    }

    /// Why the task was cancelled; `None` if it was not.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.long.as_ref().and_then(|long| long.signal.cause(long.epoch))
    }

    /// Waits until the task is cancelled. Never returns for a short task.
    ///
    /// Does not allocate, whereas [`token`](Self::token) creates a token when it is first called.
    pub async fn cancelled(&self) -> Cause {
        match &self.long {
            Some(long) => long.signal.cancelled(long.epoch).await,
            None => std::future::pending().await,
        }
    }

    /// A token that is cancelled together with the task. The token of a short task is never cancelled.
    #[must_use]
    pub fn token(&self) -> &CancellationToken {
        match &self.long {
            Some(long) => long.token.get_or_init(|| long.signal.token(long.epoch)),
            None => &UNUSED_TOKEN,
        }
    }
}
