//! Orders from outside: shut the pool down, stop a worker, configure a group, hand back waiting tasks.

use std::{iter, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    core::PoolCore,
    finish::{limit_running, unlock_and_stop},
};
use crate::{
    ending::Cause,
    id::GroupName,
    pool_types::PoolTypes,
    shutdown::{Phase, Stop},
    state::{task::AdmittedTask, task_queue::GroupState},
    timer::saturating_add,
};

/// Ends tasks that have waited longer than `longer_than`. Returns how many.
pub(crate) fn hand_back_waiting<P: PoolTypes>(core: &Arc<PoolCore<P>>, longer_than: Duration) -> usize {
    let now = Instant::now();
    let is_old = |task: &AdmittedTask<P>| {
        task.shard == 0 && task.submitted.is_some_and(|at| now.duration_since(at) > longer_than)
    };
    let mut state = core.lock();
    let waiting = state.extract(is_old);
    unlock_and_stop(core, state, Cause::Shutdown, waiting, Vec::new())
}

/// Changes the settings of a group. During a shutdown, ends the waiting tasks of groups that are paused or have a cap
/// of 0.
pub(crate) fn configure_group<P: PoolTypes>(
    core: &Arc<PoolCore<P>>,
    group: &GroupName,
    change: impl FnOnce(&mut GroupState<P>),
) {
    let mut state = core.lock();
    state.queue.configure(group, change);
    let waiting = if state.phase > Phase::Open { state.queue.extract_closed() } else { Vec::new() };
    unlock_and_stop(core, state, Cause::Shutdown, waiting, Vec::new());
}

/// Begins a shutdown, or makes the one in progress harder.
pub(crate) fn begin_shutdown<P: PoolTypes>(core: &Arc<PoolCore<P>>, stop: Stop) {
    core.closing.cancel();
    let now = Instant::now();
    let mut running = Vec::new();
    let mut state = core.lock();
    match state.phase {
        Phase::Closed => return,
        // Set before any task is ended by the shutdown.
        Phase::Open => drop(core.baseline.set(core.totals(&state))),
        _ => {}
    }
    state.phase = state.phase.max(stop.phase());
    match stop {
        Stop::Light | Stop::Soft => {}
        Stop::SoftTimeout { timeout, grace } => {
            let hard_at = saturating_add(now, timeout);
            if state.phase < Phase::Hard && state.hard_at.is_none_or(|(at, _)| hard_at < at) {
                state.hard_at = Some((hard_at, grace));
                core.timer.wake_by(hard_at);
            }
        }
        Stop::Hard { grace } => {
            state.hard_at = None;
            let give_up_at = saturating_add(now, grace);
            running = limit_running(core, &state, Cause::Shutdown, give_up_at, |_, _| true);
        }
    }
    let waiting = match state.phase {
        Phase::Open | Phase::Closed => Vec::new(),
        Phase::Light => state.queue.extract_closed(),
        // A shard whose task has started belongs to the running tasks, unless its group may start nothing.
        Phase::Soft | Phase::SoftTimeout => {
            let mut waiting = state.extract(|task| task.shard == 0);
            waiting.append(&mut state.queue.extract_closed());
            waiting
        }
        Phase::Hard => state.extract(|_| true),
    };
    let idle: Vec<_> = iter::from_fn(|| state.workers.take_oldest_idle()).collect();
    unlock_and_stop(core, state, Cause::Shutdown, waiting, running);
    for (_, waker) in idle {
        waker.wake();
    }
}

/// Makes a worker exit after its current task; `now` also cancels that task. Returns false if there is no such
/// worker.
pub(crate) fn stop_worker<P: PoolTypes>(core: &Arc<PoolCore<P>>, worker: u64, now: bool) -> bool {
    let give_up_at = saturating_add(Instant::now(), core.config.grace);
    let mut state = core.lock();
    let Some(slot) = state.workers.iter().find(|slot| slot.key.id == worker).cloned() else {
        return false;
    };
    slot.request_exit();
    let idle = state.workers.take_idle(slot.key);
    let mut running = Vec::new();
    if now {
        running = limit_running(core, &state, Cause::Stopped, give_up_at, |at, _| at.key == slot.key);
    }
    unlock_and_stop(core, state, Cause::Stopped, Vec::new(), running);
    if let Some(waker) = idle {
        waker.wake();
    }
    true
}
