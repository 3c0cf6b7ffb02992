//! Builds snapshots, and the report of a shutdown.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::Instant;

use super::core::PoolCore;
use crate::{
    pool_types::PoolTypes,
    shutdown::Report,
    snapshot::{GroupView, RunningTask, Snapshot, TaskState, Workers},
    spec::Placement,
    state::{
        pool_state::PoolState,
        worker_slot::{CurrentTask, WorkerSlot},
        workers::Mode,
    },
};

/// How the tasks ended that the pool held when its shutdown began.
pub(crate) fn report<P: PoolTypes>(core: &PoolCore<P>) -> Report {
    let earlier = core.baseline.get().copied().unwrap_or_default();
    let now = core.totals(&core.lock());
    Report {
        finished: now.finished.saturating_sub(earlier.finished),
        not_started: now.not_started - earlier.not_started,
        interrupted: now.interrupted - earlier.interrupted,
        abandoned: now.abandoned - earlier.abandoned,
        panicked: now.panicked - earlier.panicked,
    }
}

pub(crate) fn snapshot<P: PoolTypes>(core: &PoolCore<P>) -> Snapshot {
    let now = Instant::now();
    let state = core.lock();
    let tasks = running_tasks(&state, now);
    Snapshot {
        name: core.config.name.clone(),
        phase: state.phase,
        workers: Workers {
            idle: state.workers.count(Mode::Idle),
            busy: state.workers.count(Mode::Running) + state.workers.count(Mode::Parked),
            restarting: state.workers.count(Mode::Restarting),
            min: *core.config.workers.start(),
            max: *core.config.workers.end(),
            restarts: state.restarts,
        },
        queue: core.config.queue,
        queued: state.waiting(),
        running: tasks.len(),
        stuck: core.stuck.load(Ordering::Acquire),
        totals: core.totals(&state),
        tasks,
        groups: groups(&state),
    }
}

fn running_tasks<P: PoolTypes>(state: &PoolState<P>, now: Instant) -> Vec<RunningTask> {
    let task = |slot: &Arc<WorkerSlot<P>>| {
        let mut local = slot.lock();
        let CurrentTask { task, state } = local.current()?;
        Some(RunningTask {
            id: task.spec.id.clone(),
            worker: slot.key.id,
            label: state.label,
            group: task.spec.group.clone(),
            shard: (task.shard, task.spec.width),
            state: state.cancelled(task.spec.run).map_or(TaskState::Running, TaskState::Stopping),
            on_thread: task.spec.placement == Placement::Threads,
            running_seconds: state.since.map(|since| (now - since).as_secs_f64()),
        })
    };
    state.workers.iter().filter_map(task).collect()
}

fn groups<P: PoolTypes>(state: &PoolState<P>) -> Vec<GroupView> {
    let groups = state.queue.groups.iter().map(|(name, group)| GroupView {
        name: name.clone(),
        cap: group.cap,
        paused: group.paused,
        running: group.running,
        queued: state.queue.waiting_in(name),
    });
    let mut groups: Vec<_> = groups.collect();
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    groups
}
