//! Builds snapshots, and the report of a shutdown.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::{core::PoolCore, counters::Counts};
use crate::{
    completion::Completion,
    shutdown::Report,
    snapshot::{GroupView, RunningTask, Snapshot, TaskState, Totals, Workers},
    spec::Placement,
    state::{local_queue::CurrentTask, pool_state::PoolState},
    task::Task,
};

/// How the tasks ended that the pool held when its shutdown began.
pub(crate) fn report<T: Task, C: Completion<T::Output>>(core: &PoolCore<T, C>) -> Report {
    let earlier = core.baseline.get().copied().unwrap_or_default();
    let Totals { finished, not_started, interrupted, abandoned, panicked, .. } =
        core.counts(&core.lock()).since(earlier);
    Report { finished, not_started, interrupted, abandoned, panicked }
}

pub(crate) fn snapshot<T: Task, C: Completion<T::Output>>(core: &PoolCore<T, C>) -> Snapshot {
    let now = Instant::now();
    let state = core.lock();
    let tasks = running_tasks(&state, now);
    let idle = state.idle.len();
    Snapshot {
        name: core.config.name.clone(),
        phase: state.phase,
        workers: Workers {
            idle,
            busy: (state.workers.len() - idle).saturating_sub(state.restarting),
            restarting: state.restarting,
            min: *core.config.workers.start(),
            max: *core.config.workers.end(),
            restarts: state.restarts,
        },
        queue: core.config.queue,
        queued: state.waiting(),
        running: tasks.len(),
        stuck: core.stuck.load(Ordering::Acquire),
        totals: Totals { admitted: state.admitted, ..core.counts(&state).since(Counts::default()) },
        tasks,
        groups: groups(&state),
    }
}

fn running_tasks<T: Task, C: Completion<T::Output>>(
    state: &PoolState<T, C>,
    now: Instant,
) -> Vec<RunningTask> {
    let mut tasks = Vec::new();
    for slot in state.workers.iter() {
        if let Some(CurrentTask { task, state }) = slot.lock().current() {
            tasks.push(RunningTask {
                id: task.id.clone(),
                worker: slot.key.id,
                label: state.label,
                group: task.group.clone(),
                shard: (task.shard, task.width),
                state: state.cancelled(task.run).map_or(TaskState::Running, TaskState::Stopping),
                on_thread: task.placement == Placement::Threads,
                running_seconds: state.since.map(|since| (now - since).as_secs_f64()),
            });
        }
    }
    tasks
}

fn groups<T: Task, C: Completion<T::Output>>(state: &PoolState<T, C>) -> Vec<GroupView> {
    let view = |(name, group): (&_, &crate::state::group_state::GroupState<T, C>)| GroupView {
        name: Clone::clone(name),
        cap: group.cap,
        paused: group.paused,
        running: group.running,
        queued: state.queue.waiting_in(name),
    };
    let mut groups: Vec<_> = state.queue.groups().map(view).collect();
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    groups
}
