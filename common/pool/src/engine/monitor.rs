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
    core::{PoolCore, TICK},
    finish::{ToCancel, end_running, trace_id},
    orders::begin_shutdown,
};
use crate::{
    ending::{Cause, Ending},
    pool_types::PoolTypes,
    shutdown::{Phase, Stop},
    state::{
        pool_state::PoolState,
        task::TaskOwner,
        worker_slot::{Arrival, EndedTask, StopLimit, WorkerSlot},
    },
    timer::saturating_add,
};

/// How long a worker may take to drop a future when asked to, before it counts as stuck.
const DROP_TIMEOUT: Duration = Duration::from_millis(100);

/// Serves a pool until it is closed.
pub(crate) async fn run<P: PoolTypes>(core: Arc<PoolCore<P>>) {
    while core.closed.run_until_cancelled(core.timer.wait()).await.is_some() {
        inspect(&core, Instant::now());
    }
}

/// Result of an inspection of the workers. It is acted on without the lock.
struct Findings<'a, P: PoolTypes> {
    core: &'a PoolCore<P>,
    now: Instant,
    /// Workers whose task is past its deadline.
    expired: ToCancel<P>,
    /// Workers whose task was given up and blocks its thread.
    stuck: Vec<(Arc<WorkerSlot<P>>, EndedTask<P>, Cause)>,
}

impl<P: PoolTypes> Findings<'_, P> {
    fn check(&mut self, slot: &Arc<WorkerSlot<P>>) {
        let mut local = slot.lock();
        let Some(mut current) = local.current() else { return };
        let config = &self.core.config;
        match current.task.deadline(current.state.since, config.default_deadline) {
            Some(deadline) if deadline > self.now => self.core.timer.wake_by(deadline),
            Some(_) if current.limit(Cause::Deadline, saturating_add(self.now, config.grace)) => {
                self.expired.push((Arc::clone(slot), slot.signal.state.epoch()));
            }
            _ => {}
        }
        let Some(limit) = &mut current.state.limit else { return };
        let StopLimit { cause, give_up_at, drop_requested } = *limit;
        if give_up_at > self.now {
            self.core.timer.wake_by(give_up_at);
            return;
        }
        if drop_requested.is_none() {
            limit.drop_requested = Some(self.now);
            slot.drop_task.set();
        }
        // From the request: this inspection may be late.
        let drop_by = drop_requested.unwrap_or(self.now) + DROP_TIMEOUT;
        // Inside the task's own code after the grace period: it blocks its thread.
        let polling = slot.polling.load(Ordering::Relaxed);
        if polling || drop_by <= self.now {
            if let Some(ended) = local.finish() {
                self.stuck.push((Arc::clone(slot), ended, cause));
            }
        } else {
            self.core.timer.wake_by(drop_by);
        }
    }
}

fn inspect<P: PoolTypes>(core: &Arc<PoolCore<P>>, now: Instant) {
    core.timer.clear();
    let mut findings = Findings { core, now, expired: Vec::new(), stuck: Vec::new() };
    let mut state = core.lock();
    let hard = state.hard_at.filter(|(hard_at, _)| *hard_at <= now);
    if let Some((hard_at, _)) = state.hard_at {
        core.timer.wake_by(hard_at);
    }
    for slot in state.workers.iter() {
        findings.check(slot);
    }
    for (slot, ..) in &findings.stuck {
        state.remove_worker(slot);
        core.stuck.fetch_add(1, Ordering::AcqRel);
    }
    remove_idle(core, &mut state, now);
    let batched = put_back_stalled_batches(&mut state);
    let awaited = replace_missing(core, &mut state, now);
    // The pool must not close before the tasks that were given up have ended.
    let hold = core.hold_open(&mut state);
    core.unlock_after_tick(state, batched || awaited);
    for (slot, epoch) in findings.expired {
        slot.signal.cancel(epoch, Cause::Deadline);
    }
    for (slot, ended, cause) in findings.stuck {
        slot.abandoned.notify_one();
        let trace_id = match &ended.task.owner {
            TaskOwner::Single(notifier) => trace_id(&notifier.completion),
            TaskOwner::Shard(_) => None,
        };
        let (pool, id) = (&core.config.name, &ended.task.spec.id);
        tracing::warn!(pool, task = %id, trace_id, ?cause, "task is stuck, its worker is replaced");
        end_running(core, ended, Ending::GaveUp { cause, stuck: true }, None, false);
    }
    if let Some((_, grace)) = hard {
        begin_shutdown(core, Stop::Hard { grace });
    }
    drop(hold);
}

/// Puts batches back whose worker still runs the task that it ran at the last inspection. Returns whether any
/// worker holds a batch.
fn put_back_stalled_batches<P: PoolTypes>(state: &mut PoolState<P>) -> bool {
    let mut batched = false;
    let active: Vec<_> = state.active().cloned().collect();
    for slot in active {
        let mut local = slot.lock();
        let running = local.current().map(|current| current.task.seq);
        let stalled = local.seen == running;
        local.seen = running;
        batched |= local.waiting() > 0;
        if stalled {
            state.queue.put_back(local.drain(usize::MAX));
        }
    }
    batched
}

/// Replaces workers that were called for a task and have not come for it. Returns whether any worker is awaited.
///
/// Tokio reserves a task that another one wakes for the thread of the other one. If that thread is then blocked, no other
/// thread takes the woken task. A worker that calls another before it runs a task that blocks its thread hides it so.
/// A thread hides at most one worker. A worker that the monitor calls is not hidden, because the monitor does not block.
fn replace_missing<P: PoolTypes>(core: &PoolCore<P>, state: &mut PoolState<P>, now: Instant) -> bool {
    let mut awaited = false;
    let called: Vec<_> = state.called().cloned().collect();
    for slot in called {
        let mut local = slot.lock();
        match local.arrival {
            Arrival::Awaited(since) if since + TICK <= now && state.replaced < core.threads => {
                local.arrival = Arrival::Replaced;
                drop(local);
                slot.request_exit();
                state.replaced += 1;
                state.remove_worker(&slot);
                continue;
            }
            Arrival::Awaited(_) => {}
            Arrival::Came | Arrival::Replaced => local.arrival = Arrival::Awaited(now),
        }
        awaited = true;
    }
    awaited
}

/// Removes workers that have been idle for too long.
fn remove_idle<P: PoolTypes>(core: &PoolCore<P>, state: &mut PoolState<P>, now: Instant) {
    while state.phase == Phase::Open
        && state.workers.len() > *core.config.workers.start()
        && let Some(since) = state.workers.oldest_idle_since()
    {
        let idle_until = saturating_add(since, core.config.idle_timeout);
        if idle_until > now {
            core.timer.wake_by(idle_until);
            return;
        }
        if let Some((slot, waker)) = state.workers.take_oldest_idle() {
            slot.request_exit();
            // It no longer counts, or this loop would remove one worker too many.
            state.remove_worker(&slot);
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::tests::TestCore, spec::Spec};

    #[test]
    fn workers_that_do_not_come_are_replaced_one_for_each_thread() {
        let test = TestCore::new(1..=2, 2);
        let start = Instant::now();
        let count = || {
            let state = test.core.lock();
            (state.workers.len(), state.replaced)
        };
        // Each submission calls a worker. These workers are never polled.
        test.submit(Spec::short("a")).unwrap();
        test.submit(Spec::short("b")).unwrap();
        let first = test.core.lock().called().map(|slot| slot.key).collect::<Vec<_>>();
        assert_eq!(first.len(), 2);
        inspect(&test.core, start);
        inspect(&test.core, start + TICK / 2);
        assert_eq!(count(), (2, 0));
        inspect(&test.core, start + TICK);
        // One worker is called for each inspection.
        assert_eq!(count(), (1, 2));
        inspect(&test.core, start + TICK * 2);
        assert_eq!(count(), (2, 2));
        for tick in 3..9 {
            inspect(&test.core, start + TICK * tick);
            assert_eq!(count(), (2, 2), "no more than there are threads");
        }
        assert!(test.core.lock().called().all(|slot| !first.contains(&slot.key)));
    }

    #[test]
    fn a_late_inspection_leaves_a_worker_time_to_drop_its_future() {
        let test = TestCore::new(1..=1, 1);
        test.submit(Spec::long("cancelled")).unwrap();
        let slot = test.core.lock().called().next().cloned().unwrap();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(test.worker(&slot).next_task(&mut Default::default(), &mut cx).is_ready());
        let give_up_at = Instant::now();
        slot.lock().current().unwrap().limit(Cause::Deadline, give_up_at);
        let late = give_up_at + 10 * DROP_TIMEOUT;
        for inspected in [late, late + DROP_TIMEOUT / 2] {
            inspect(&test.core, inspected);
            assert!(slot.lock().current().is_some() && test.endings.try_recv().is_err());
        }
        inspect(&test.core, late + DROP_TIMEOUT);
        let stuck = Ending::GaveUp { cause: Cause::Deadline, stuck: true };
        assert_eq!(test.endings.try_recv(), Ok(stuck));
    }

    #[test]
    fn workers_that_came_are_not_replaced() {
        let test = TestCore::new(1..=2, 2);
        let start = Instant::now();
        test.submit(Spec::short("a")).unwrap();
        let slot = test.core.lock().called().next().cloned().unwrap();
        inspect(&test.core, start);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(test.worker(&slot).next_task(&mut Default::default(), &mut cx).is_ready());
        inspect(&test.core, start + TICK * 2);
        let state = test.core.lock();
        assert!(state.workers.get(slot.key).is_some() && state.replaced == 0);
    }
}
