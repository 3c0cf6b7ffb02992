//! The pool as an operator sees it, and the hooks through which metrics are attached.

use std::time::Duration;

use serde::Serialize;

use super::{Cause, EndingKind, GroupName, Phase, Placement, TaskId};

/// One consistent look at a pool.
#[derive(Debug, Clone, Serialize)]
pub struct Snapshot {
    /// The pool's name.
    pub name: String,
    /// Open, or how far its shutdown is.
    pub phase: Phase,
    /// The workers.
    pub workers: Workers,
    /// Bound of admission, in tasks.
    pub queue: usize,
    /// Tasks that wait, those of paused or capped groups included.
    pub queued: usize,
    /// Tasks that run.
    pub running: usize,
    /// Workers that were written off and have not come back.
    pub stuck: u64,
    /// Endings since the start.
    pub totals: Totals,
    /// The running tasks.
    pub tasks: Vec<RunningTask>,
    /// Groups that hold tasks, are paused, or have a cap; by name.
    pub groups: Vec<GroupView>,
}

/// How many workers there are, and what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Workers {
    /// Without work.
    pub idle: usize,
    /// With a task.
    pub busy: usize,
    /// Waiting to restart after a panic.
    pub restarting: usize,
    /// Fewest.
    pub min: usize,
    /// Most.
    pub max: usize,
    /// Restarts since the start.
    pub restarts: u64,
}

/// Endings since the start, in tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Ever admitted.
    pub admitted: u64,
    /// See [`EndingKind::Finished`].
    pub finished: u64,
    /// See [`EndingKind::NotStarted`].
    pub not_started: u64,
    /// See [`EndingKind::Interrupted`].
    pub interrupted: u64,
    /// See [`EndingKind::Abandoned`].
    pub abandoned: u64,
    /// See [`EndingKind::Panicked`].
    pub panicked: u64,
}

/// One running task.
#[derive(Debug, Clone, Serialize)]
pub struct RunningTask {
    /// Its id.
    pub id: TaskId,
    /// The worker that runs it, as [`Pool::stop_worker`](super::Pool::stop_worker) takes it.
    pub worker: u64,
    /// What [`Task::label`](super::Task::label) says.
    pub label: Option<&'static str>,
    /// Its group.
    pub group: Option<GroupName>,
    /// Which shard, from 0, of how many.
    pub shard: (u32, u32),
    /// Whether it has been told to stop, and why.
    pub state: TaskState,
    /// Whether it runs on a thread of its own.
    pub on_thread: bool,
    /// For how long it has been running, in seconds; absent for a short task of a pool without an
    /// observer, whose start is not timed.
    pub running_seconds: Option<f64>,
}

/// What a running task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Runs.
    Running,
    /// Was told to stop and has not returned.
    Stopping(Cause),
}

/// One group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupView {
    /// Its name.
    pub name: GroupName,
    /// Most that may run at once.
    pub cap: Option<usize>,
    /// Whether nothing of it is started.
    pub paused: bool,
    /// Tasks and shards that run.
    pub running: usize,
    /// Tasks that wait.
    pub queued: usize,
}

/// Called as tasks start and end; must be quick and must not block. Without one, the pool reads no
/// clock for short tasks.
pub trait Observer: Send + Sync + 'static {
    /// A task starts, after having waited this long.
    fn started(&self, waited: Duration, placement: Placement) {
        let _ = (waited, placement);
    }

    /// A task that was started ended, after having run this long.
    fn ended(&self, ran: Duration, ending: EndingKind) {
        let _ = (ran, ending);
    }
}
