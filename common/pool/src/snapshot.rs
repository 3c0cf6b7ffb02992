//! The state of a pool as an operator sees it.

use serde::Serialize;

use crate::{
    ending::Cause,
    id::{GroupName, TaskId},
    shutdown::Phase,
};

/// A consistent view of a pool at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Snapshot {
    /// The name of the pool.
    pub name: String,
    /// Open, or the phase of the shutdown.
    pub phase: Phase,
    /// The workers.
    pub workers: Workers,
    /// The most queued and running tasks that the pool admits.
    pub queue: usize,
    /// Queued tasks, including those of paused or capped groups.
    pub queued: usize,
    /// Running tasks; each running shard of a task counts.
    pub running: usize,
    /// Workers that were abandoned because their task blocks its thread, and have not returned.
    pub stuck: u64,
    /// Endings since the pool was started.
    pub totals: Totals,
    /// The running tasks.
    pub tasks: Vec<RunningTask>,
    /// Groups that hold tasks, are paused or have a cap, sorted by name.
    pub groups: Vec<GroupView>,
}

/// How many workers there are, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Workers {
    /// Workers without a task.
    pub idle: usize,
    /// Workers with a task.
    pub busy: usize,
    /// Workers that pause after a panic.
    pub restarting: usize,
    /// The configured minimum.
    pub min: usize,
    /// The configured maximum.
    pub max: usize,
    /// Restarts since the pool was started.
    pub restarts: u64,
}

/// Endings since the pool was started, in tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Admitted tasks.
    pub admitted: u64,
    /// See [`EndingKind::Finished`](crate::EndingKind::Finished).
    pub finished: u64,
    /// See [`EndingKind::NotStarted`](crate::EndingKind::NotStarted).
    pub not_started: u64,
    /// See [`EndingKind::Interrupted`](crate::EndingKind::Interrupted).
    pub interrupted: u64,
    /// See [`EndingKind::Abandoned`](crate::EndingKind::Abandoned).
    pub abandoned: u64,
    /// See [`EndingKind::Panicked`](crate::EndingKind::Panicked).
    pub panicked: u64,
}

/// One running task, or one running shard of a task.
#[derive(Debug, Clone, Serialize)]
pub struct RunningTask {
    /// The id of the task.
    pub id: TaskId,
    /// The worker that runs it, as taken by [`Pool::stop_worker`](crate::Pool::stop_worker).
    pub worker: u64,
    /// The result of [`Task::label`](crate::Task::label).
    pub label: Option<&'static str>,
    /// The group of the task.
    pub group: Option<GroupName>,
    /// The shard, counted from 0, and the number of shards.
    pub shard: (u32, u32),
    /// Whether the task was cancelled, and why.
    pub state: TaskState,
    /// Whether it runs on a thread of its worker instead of the runtime.
    pub on_thread: bool,
    /// How long it has been running, in seconds. Absent for a short task of a pool without an observer, because
    /// the pool does not record when such a task starts.
    pub running_seconds: Option<f64>,
}

/// Whether a running task was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// The task runs.
    Running,
    /// The task was cancelled and has not returned yet.
    Stopping(Cause),
}

/// One group of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupView {
    /// The name of the group.
    pub name: GroupName,
    /// The most tasks and shards of the group that may run at once.
    pub cap: Option<usize>,
    /// Whether the group is paused.
    pub paused: bool,
    /// Running tasks and shards of the group.
    pub running: usize,
    /// Queued tasks of the group.
    pub queued: usize,
}
