//! The pool's one timer task: deadlines, grace periods, idle workers, and the moment when `SoftTimeout` turns hard.
//!
//! A task has no timer of its own: starting it only compares its deadline with the next wake-up of the monitor. The
//! monitor runs where the pool was started rather than on the runtime of the tasks, so that tasks that block their
//! threads cannot stop it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    core::PoolCore,
    finish::{end_running, trace_id},
    orders::begin_shutdown,
};
use crate::{
    atomic::cancel_state::Epoch,
    cause::Cause,
    completion::Completion,
    ending::Ending,
    saturating_instant,
    shutdown::{Phase, Stop},
    state::{
        admitted_task::TaskOwner, local_queue::EndedTask, pool_state::PoolState, stop_limit::StopLimit,
        worker_slot::WorkerSlot,
    },
    task::Task,
};

/// How long a worker may take to drop a future when asked to, before it counts as stuck.
const DROP_TIMEOUT: Duration = Duration::from_millis(100);

/// Serves a pool until it is closed.
pub(crate) async fn run<T: Task, C: Completion<T::Output>>(core: Arc<PoolCore<T, C>>) {
    loop {
        tokio::select! {
            () = core.closed.cancelled() => return,
            () = core.timer.wait() => inspect(&core),
        }
    }
}

/// What an inspection of the workers found. It is acted on without the lock.
struct Findings<T: Task, C: Completion<T::Output>> {
    now: Instant,
    grace: Duration,
    default_deadline: Duration,
    /// When the next inspection is due.
    next: Option<Instant>,
    /// Workers whose task is past its deadline.
    expired: Vec<(Arc<WorkerSlot<T, C>>, Epoch)>,
    /// Workers whose task was given up and blocks its thread.
    stuck: Vec<Arc<WorkerSlot<T, C>>>,
    given_up: Vec<(EndedTask<T, C>, Cause)>,
}

impl<T: Task, C: Completion<T::Output>> Findings<T, C> {
    fn due_at(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    fn check(&mut self, slot: &Arc<WorkerSlot<T, C>>) {
        let mut local = slot.lock();
        let Some(mut current) = local.current() else { return };
        match current.task.deadline(current.state.since, self.default_deadline) {
            Some(deadline) if deadline > self.now => self.due_at(deadline),
            Some(_) if current.state.limit.is_none() => {
                current.limit(Cause::Deadline, self.now, self.grace);
                self.expired.push((Arc::clone(slot), slot.signal.epoch()));
            }
            _ => {}
        }
        let Some(limit) = &mut current.state.limit else { return };
        let StopLimit { cause, give_up_at, drop_requested } = *limit;
        if give_up_at > self.now {
            self.due_at(give_up_at);
            return;
        }
        if !drop_requested {
            limit.drop_requested = true;
            slot.control.drop_task.set();
        }
        // Inside the task's own code after the grace period: it blocks its thread.
        let polling = slot.control.polling.load(Ordering::Relaxed);
        if polling || give_up_at + DROP_TIMEOUT <= self.now {
            if let Some(ended) = local.finish() {
                self.stuck.push(Arc::clone(slot));
                self.given_up.push((ended, cause));
            }
        } else {
            self.due_at(give_up_at + DROP_TIMEOUT);
        }
    }
}

fn inspect<T: Task, C: Completion<T::Output>>(core: &Arc<PoolCore<T, C>>) {
    core.timer.clear();
    let now = Instant::now();
    let mut state = core.lock();
    let (hard, hard_at) = match state.hard_at {
        Some((at, grace)) if at <= now => (Some(Stop::Hard { grace }), None),
        later => (None, later.map(|(at, _)| at)),
    };
    let mut findings = Findings {
        now,
        grace: core.config.grace,
        default_deadline: core.config.default_deadline,
        next: hard_at,
        expired: Vec::new(),
        stuck: Vec::new(),
        given_up: Vec::new(),
    };
    for slot in state.workers.iter() {
        findings.check(slot);
    }
    for slot in &findings.stuck {
        state.remove_worker(slot);
        core.stuck.fetch_add(1, Ordering::AcqRel);
    }
    if let Some(idle_until) = remove_idle(core, &mut state, now) {
        findings.due_at(idle_until);
    }
    let batched = put_back_stalled_batches(&mut state);
    // The pool must not close before the tasks that were given up have ended.
    let hold = core.hold_open(&mut state);
    core.unlock_after_tick(state, batched);
    for (slot, epoch) in findings.expired {
        slot.signal.cancel(epoch, Cause::Deadline);
    }
    for slot in findings.stuck {
        slot.control.abandoned.notify_one();
    }
    for (ended, cause) in findings.given_up {
        let trace_id = match &ended.task.owner {
            TaskOwner::Single(notifier) => trace_id(&notifier.completion),
            TaskOwner::Shard(_) => None,
        };
        let (pool, id) = (&core.config.name, &ended.task.id);
        tracing::warn!(pool, task = %id, trace_id, ?cause, "task is stuck, its worker is replaced");
        end_running(core, ended, Ending::GaveUp { cause, stuck: true }, None, false);
    }
    if let Some(hard) = hard {
        begin_shutdown(core, hard);
    }
    if let Some(next) = findings.next {
        core.timer.wake_by(next);
    }
    drop(hold);
}

/// Puts batches back whose worker still runs the task that it ran at the last inspection. Returns whether any
/// worker holds a batch.
fn put_back_stalled_batches<T: Task, C: Completion<T::Output>>(state: &mut PoolState<T, C>) -> bool {
    let mut batched = false;
    let active: Vec<_> = state.active().cloned().collect();
    for slot in active {
        let mut local = slot.lock();
        let running = local.current().map(|current| current.task.seq);
        let stalled = local.seen == running;
        local.seen = running;
        batched |= local.waiting() > 0;
        drop(local);
        if stalled {
            state.put_back(&slot);
        }
    }
    batched
}

/// Removes workers that have been idle for too long. Returns when the next one has.
fn remove_idle<T: Task, C: Completion<T::Output>>(
    core: &PoolCore<T, C>,
    state: &mut PoolState<T, C>,
    now: Instant,
) -> Option<Instant> {
    while state.phase == Phase::Open && state.workers.len() > *core.config.workers.start() {
        let idle_until = saturating_instant::add(state.idle.oldest_since()?, core.config.idle_timeout);
        if idle_until > now {
            return Some(idle_until);
        }
        let (key, waker) = state.idle.pop_oldest()?;
        if let Some(slot) = state.workers.get(key).cloned() {
            slot.control.request_exit();
            // It no longer counts, or this loop would remove one worker too many.
            state.remove_worker(&slot);
        }
        waker.wake();
    }
    None
}
