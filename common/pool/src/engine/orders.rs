//! Orders from outside: shut the pool down, stop a worker, hand back waiting tasks.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{core::PoolCore, finish::end_waiting};
use crate::{
    cause::Cause,
    completion::Completion,
    saturating_instant,
    shutdown::{Phase, Stop},
    state::admitted_task::AdmittedTask,
    task::Task,
};

/// Ends tasks that have waited longer than `longer_than`. Returns how many.
pub(crate) fn hand_back_waiting<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    longer_than: Duration,
) -> usize {
    let now = Instant::now();
    let is_old = |task: &AdmittedTask<T, C>| {
        task.shard == 0 && task.submitted.is_some_and(|at| now.duration_since(at) > longer_than)
    };
    let (waiting, hold) = {
        let mut state = core.lock();
        (state.extract(is_old), core.hold_open(&mut state))
    };
    let found = waiting.len();
    end_waiting(core, waiting, Cause::Shutdown, hold);
    found
}

/// During a shutdown, ends the waiting tasks of paused groups and of groups with a cap of 0.
pub(crate) fn hand_back_closed_groups<T: Task, C: Completion<T::Output>>(core: &Arc<PoolCore<T, C>>) {
    let (waiting, hold) = {
        let mut state = core.lock();
        if state.phase == Phase::Open {
            return;
        }
        (state.queue.extract_closed(), core.hold_open(&mut state))
    };
    end_waiting(core, waiting, Cause::Shutdown, hold);
}

/// Begins a shutdown, or makes the one in progress harder.
pub(crate) fn begin_shutdown<T: Task, C: Completion<T::Output>>(core: &Arc<PoolCore<T, C>>, stop: Stop) {
    let now = Instant::now();
    let mut cancelled = Vec::new();
    let mut wake_at = None;
    let mut state = core.lock();
    if state.phase == Phase::Closed {
        return;
    }
    if state.phase == Phase::Open {
        // Set before any task is ended by the shutdown.
        let _ = core.baseline.set(core.counts(&state));
    }
    state.phase = state.phase.max(stop.phase());
    match stop {
        Stop::Light | Stop::Soft => {}
        Stop::SoftTimeout { timeout, grace } => {
            let hard_at = saturating_instant::add(now, timeout);
            if state.phase < Phase::Hard && state.hard_at.is_none_or(|(at, _)| hard_at < at) {
                state.hard_at = Some((hard_at, grace));
                wake_at = Some(hard_at);
            }
        }
        Stop::Hard { grace } => {
            state.hard_at = None;
            wake_at = Some(saturating_instant::add(now, grace));
            for slot in state.workers.iter() {
                if let Some(mut current) = slot.lock().current()
                    && current.limit(Cause::Shutdown, now, grace)
                {
                    cancelled.push((Arc::clone(slot), slot.signal.epoch()));
                }
            }
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
    let hold = core.hold_open(&mut state);
    let idle = state.idle.drain();
    core.unlock_and_scale(state);
    core.closing.cancel();
    for waker in idle {
        waker.wake();
    }
    for (slot, epoch) in cancelled {
        slot.signal.cancel(epoch, Cause::Shutdown);
    }
    if let Some(at) = wake_at {
        core.timer.wake_by(at);
    }
    end_waiting(core, waiting, Cause::Shutdown, hold);
}

/// Makes a worker exit after its current task; `now` also cancels that task. Returns false if there is no such
/// worker.
pub(crate) fn stop_worker<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    worker: u64,
    now: bool,
) -> bool {
    let at = Instant::now();
    let mut cancelled = None;
    let waker;
    {
        let mut state = core.lock();
        let Some(slot) = state.workers.iter().find(|slot| slot.key.id == worker).cloned() else {
            return false;
        };
        slot.control.request_exit();
        waker = state.idle.remove(slot.key);
        if now
            && let Some(mut current) = slot.lock().current()
            && current.state.cancelled(current.task.run).is_none()
            && current.limit(Cause::Stopped, at, core.config.grace)
        {
            cancelled = Some((Arc::clone(&slot), slot.signal.epoch()));
        }
    }
    if let Some(waker) = waker {
        waker.wake();
    }
    if let Some((slot, epoch)) = cancelled {
        slot.signal.cancel(epoch, Cause::Stopped);
        core.timer.wake_by(saturating_instant::add(at, core.config.grace));
    }
    true
}
