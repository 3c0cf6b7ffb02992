//! What a pool runs: a task, how it is to be run, and what it is told while it runs.

use std::{
    future::Future,
    sync::{Arc, LazyLock, OnceLock},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Cause, GroupName, TaskId,
    signal::{Epoch, Signal},
};

/// Work of one kind, run once by a worker of the pool.
pub trait Task: Send + Sized + 'static {
    /// What the work yields; reaches the [`Completion`](super::Completion).
    type Output: Send + 'static;

    /// Does the work. Runs in place on the worker: a short task should not wait for long, a long one
    /// should watch [`TaskContext::cancelled`] or [`TaskContext::token`].
    fn run(self, cx: TaskContext) -> impl Future<Output = Self::Output> + Send;

    /// One more shard of this task, for tasks that ask for several workers. A task that answers none
    /// (the default) is refused when its width is over 1.
    #[must_use]
    fn shard(&self) -> Option<Self> {
        None
    }

    /// What snapshots call it besides its id while it runs, such as the kind of work. Asked under a lock of
    /// the pool: names only, and orders nothing.
    #[must_use]
    fn label(&self) -> Option<&'static str> {
        None
    }

    /// Joins the outputs of two shards, in the order in which they ended. Keeps the first by default.
    #[must_use]
    fn join(first: Self::Output, next: Self::Output) -> Self::Output {
        let _ = next;
        first
    }
}

/// Whether a task can be interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// No timer, no token: it runs to its end. Only a hard shutdown leaves it behind.
    Short,
    /// Told to stop at its deadline, by [`Pool::stop`](super::Pool::stop) and by a hard shutdown.
    Long {
        /// From its start; the pool's default when absent.
        deadline: Option<Duration>,
    },
}

/// Where a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// On the runtime the pool was started with.
    Runtime,
    /// On a thread that belongs to the worker, for work that keeps a processor busy.
    Threads,
}

/// How a task is to be run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Its id for logs, snapshots and [`Pool::stop`](super::Pool::stop).
    pub id: TaskId,
    /// Short or long.
    pub run: Run,
    /// The group whose cap, pause and stop apply.
    pub group: Option<GroupName>,
    /// How many workers it asks for; 1 for nearly every task.
    pub width: u32,
    /// On the runtime, or on a thread.
    pub placement: Placement,
}

impl Spec {
    /// A short task on the runtime, in no group.
    #[must_use]
    pub fn short(id: impl Into<TaskId>) -> Self {
        Self { id: id.into(), run: Run::Short, group: None, width: 1, placement: Placement::Runtime }
    }

    /// A long task on the runtime, in no group, with the pool's own deadline.
    #[must_use]
    pub fn long(id: impl Into<TaskId>) -> Self {
        Self { run: Run::Long { deadline: None }, ..Self::short(id) }
    }

    /// The same, long, with this deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.run = Run::Long { deadline: Some(deadline) };
        self
    }

    /// The same, in a group.
    #[must_use]
    pub fn group(mut self, group: impl Into<GroupName>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// The same, run by several workers at once: shard i of `width`.
    #[must_use]
    pub fn width(mut self, width: u32) -> Self {
        self.width = width;
        self
    }

    /// The same, on threads.
    #[must_use]
    pub fn on_threads(mut self) -> Self {
        self.placement = Placement::Threads;
        self
    }
}

/// What a running task knows about itself, and how it learns that it is to stop.
pub struct TaskContext {
    pub(super) id: TaskId,
    pub(super) shard: u32,
    pub(super) width: u32,
    pub(super) long: Option<Long>,
}

/// The part of the context only a long task has.
pub(super) struct Long {
    pub(super) signal: Arc<Signal>,
    pub(super) epoch: Epoch,
    pub(super) deadline: Instant,
    pub(super) token: OnceLock<CancellationToken>,
}

static NEVER: LazyLock<CancellationToken> = LazyLock::new(CancellationToken::new);

impl TaskContext {
    /// The context of a short task that runs as a part of another.
    #[must_use]
    pub fn short(id: impl Into<TaskId>) -> Self {
        Self { id: id.into(), shard: 0, width: 1, long: None }
    }

    /// The id the task was submitted with.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// Which shard this is, counted from 0.
    #[must_use]
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// How many shards there are; 1 for an ordinary task.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// When the task will be told to stop; none for a short one.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.long.as_ref().map(|long| long.deadline)
    }

    /// Why the task was told to stop, if it was.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.long.as_ref().and_then(|long| long.signal.cause(long.epoch))
    }

    /// Resolves when the task is told to stop; never for a short task. Allocates nothing, where
    /// [`token`](Self::token) makes a token when first asked.
    pub async fn cancelled(&self) -> Cause {
        match &self.long {
            Some(long) => long.signal.told(long.epoch).await,
            None => std::future::pending().await,
        }
    }

    /// A token cancelled when the task is told to stop; a short task's never is.
    #[must_use]
    pub fn token(&self) -> &CancellationToken {
        match &self.long {
            Some(long) => long.token.get_or_init(|| long.signal.token(long.epoch)),
            None => &NEVER,
        }
    }
}
