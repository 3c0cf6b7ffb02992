//! How a task is to be run.

use std::time::Duration;

use crate::id::{GroupName, TaskId};

/// Whether a task can be cancelled while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Has no deadline and cannot be cancelled. Only a hard shutdown gives it up.
    Short,
    /// Is cancelled at its deadline, by [`Pool::stop`](crate::Pool::stop) and by a hard shutdown.
    Long {
        /// Time from its start until it is cancelled; the pool's default if `None`.
        deadline: Option<Duration>,
    },
}

/// Where a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// On the runtime that the pool was started with.
    Runtime,
    /// On a thread of its worker, for work that keeps a processor busy or blocks.
    Threads,
}

/// How a task is to be run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Identifies the task in logs, snapshots and [`Pool::stop`](crate::Pool::stop).
    pub id: TaskId,
    /// Short or long.
    pub run: Run,
    /// The group whose cap, pause and stop apply to the task.
    pub group: Option<GroupName>,
    /// How many workers the task asks for.
    pub width: u32,
    /// Whether the shards besides the first are helpers. See [`helped_by`](Self::helped_by).
    pub helpers: bool,
    /// On the runtime or on a thread.
    pub placement: Placement,
}

impl Spec {
    /// A short task on the runtime, without a group.
    #[must_use]
    pub fn short(id: impl Into<TaskId>) -> Self {
        Self {
            id: id.into(),
            run: Run::Short,
            group: None,
            width: 1,
            helpers: false,
            placement: Placement::Runtime,
        }
    }

    /// A long task on the runtime, without a group, with the pool's default deadline.
    #[must_use]
    pub fn long(id: impl Into<TaskId>) -> Self {
        Self { run: Run::Long { deadline: None }, ..Self::short(id) }
    }

    /// Makes the task long, with this deadline counted from its start.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.run = Run::Long { deadline: Some(deadline) };
        self
    }

    /// Puts the task into a group.
    #[must_use]
    pub fn group(mut self, group: impl Into<GroupName>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Runs the task on several workers at once, as `width` shards. See [`Task::shard`](crate::Task::shard).
    #[must_use]
    pub fn width(mut self, width: u32) -> Self {
        self.width = width;
        self
    }

    /// Lets up to `helpers` idle workers help with the task: each runs one more shard of it.
    ///
    /// Unlike shards of a [width](Self::width), helpers are optional. They start only while no other task waits for a
    /// worker, and those that have not started when the first shard ends are dropped. So the first shard must be able
    /// to do all the work. There are fewer if [`Task::shard`](crate::Task::shard) returns fewer, and never more than
    /// the pool has workers. A helper should return when [`TaskContext::tasks_wait`](crate::TaskContext::tasks_wait)
    /// is true.
    #[must_use]
    pub fn helped_by(mut self, helpers: u32) -> Self {
        self.width = helpers.saturating_add(1);
        self.helpers = helpers > 0;
        self
    }

    /// Runs the task on a thread of its worker.
    #[must_use]
    pub fn on_threads(mut self) -> Self {
        self.placement = Placement::Threads;
        self
    }
}
