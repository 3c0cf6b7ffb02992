//! How workers get their tasks.
//!
//! A worker takes one task at a time while another worker could start the next one. Only if all threads are busy
//! (as many busy workers as the runtime has threads, or as the pool has workers) does it take a batch, so that
//! the pool's lock is taken once for many tasks. No task waits for its batch: the batch is put back when its
//! worker has to wait, stolen by workers that find no other task, and moved by the monitor when its worker has
//! not advanced since the last tick.

use std::{
    sync::{Arc, MutexGuard, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use super::{batch_size::BatchSize, core::PoolCore};
use crate::{
    context::{LongContext, Queue, TaskContext},
    panic::catch,
    pool_types::PoolTypes,
    shutdown::Phase,
    spec::{Placement, Run},
    state::{
        pool_state::{LockedState, PoolState},
        task::AdmittedTask,
        worker_slot::{Arrival, LocalQueue, WorkerKey, WorkerSlot},
        workers::Mode,
    },
    task::Task,
    timer::saturating_add,
};

/// One worker and the pool that it works for.
pub(crate) struct Worker<P: PoolTypes> {
    pub(crate) core: Arc<PoolCore<P>>,
    pub(crate) slot: Arc<WorkerSlot<P>>,
}

/// A task that is about to run. The rest of it stays in the worker's local queue.
pub(crate) struct StartedTask<T> {
    pub(crate) task: T,
    pub(crate) cx: TaskContext,
    pub(crate) placement: Placement,
    /// How long it waited. Known only to an observed pool.
    pub(crate) waited: Option<Duration>,
}

impl<P: PoolTypes> Worker<P> {
    /// Takes the worker's next task, or registers the worker as idle. Returns `None` if the worker exits. The local
    /// queue is empty.
    pub(crate) fn next_task(
        &self,
        batch_size: &mut BatchSize,
        cx: &mut Context<'_>,
    ) -> Poll<Option<StartedTask<P::Task>>> {
        let Self { core, slot } = self;
        let mut state = core.lock();
        // The worker is still listed after a spurious wake-up. A busy worker must not be woken for a task.
        state.workers.take_idle(slot.key);
        if slot.exit_requested() {
            return Poll::Ready(None);
        }
        let mut local = slot.lock();
        local.arrival = Arrival::Came;
        state.ended += std::mem::take(&mut local.uncounted);
        let Some(task) = next(&mut state, &mut local, slot.key) else {
            drop(local);
            batch_size.reset();
            return if self.become_idle(state, cx) { Poll::Pending } else { Poll::Ready(None) };
        };
        let batched = task.spec.placement == Placement::Runtime
            && state.queue.has_plain()
            && !core.has_free_worker(&state);
        local.push_first(task);
        if batched {
            let now = core.batch_now();
            let size = batch_size.next(now);
            local.extend(state.queue.take_plain(size - 1));
            batch_size.taken(now, local.waiting());
        }
        let batched = local.waiting() > 1;
        // The task is in the local queue before the state is unlocked, so it is always in one of the two.
        let started = self.start(local, None, |started| started);
        state.activate(slot);
        core.unlock_and_tick(state, batched);
        Poll::Ready(started)
    }

    /// Registers the worker as idle. Returns false if it exits instead.
    fn become_idle(&self, mut state: LockedState<'_, P>, cx: &Context<'_>) -> bool {
        let Self { core, slot } = self;
        // No task can be started and none is admitted any more. A task that waits for the cap of its group is taken by
        // the worker that ends another task of the group.
        if state.phase > Phase::Open {
            return false;
        }
        state.forget_active(slot.key);
        // Workers of the minimum do not exit. New workers are added only if none is idle, so workers that became idle
        // before the pool grew need no idle time either.
        let above_minimum = state.workers.len() > *core.config.workers.start();
        let since = above_minimum.then(Instant::now);
        state.workers.become_idle(slot.key, since, cx.waker().clone());
        drop(state);
        if let Some(since) = since {
            core.timer.wake_by(saturating_add(since, core.config.idle_timeout));
        }
        true
    }

    /// Marks the first task of the local queue as running and passes it to `then` after unlocking the queue.
    ///
    /// Takes a closure instead of returning the task: a value that two paths build in parts is read back before its
    /// parts have reached the cache, which costs a fifth of an empty task.
    #[inline(always)]
    pub(crate) fn start<R>(
        &self,
        mut local: MutexGuard<'_, LocalQueue<P>>,
        now: Option<Instant>,
        then: impl FnOnce(StartedTask<P::Task>) -> R,
    ) -> Option<R> {
        let (admitted, state) = local.start()?;
        admitted.owner.started();
        let task = admitted.task.take()?;
        // A panic in user code: the task then has no label.
        state.label = catch(|| task.label()).unwrap_or_default();
        let (id, shard, width) = (admitted.spec.id.clone(), admitted.shard, admitted.spec.width);
        let placement = admitted.spec.placement;
        // Short tasks take paths of their own, because they may start a million times a second and would otherwise move
        // the unused fields of long tasks.
        let short = matches!(admitted.spec.run, Run::Short);
        if short && admitted.submitted.is_none() {
            drop(local);
            let cx = TaskContext { id, shard, width, long: None };
            return Some(then(StartedTask { task, cx, placement, waited: None }));
        }
        let since = now.unwrap_or_else(Instant::now);
        state.since = Some(since);
        let waited = admitted.submitted.map(|submitted| since.saturating_duration_since(submitted));
        if short {
            drop(local);
            let cx = TaskContext { id, shard, width, long: None };
            return Some(then(StartedTask { task, cx, placement, waited }));
        }
        let long = admitted.deadline(state.since, self.core.config.default_deadline).map(|deadline| {
            let signal = Arc::clone(&self.slot.signal);
            let epoch = signal.state.begin();
            let helps = admitted.spec.helpers && admitted.shard > 0;
            let queue = helps.then(|| Arc::clone(&self.core) as Arc<dyn Queue>);
            LongContext { signal, epoch, deadline, token: OnceLock::new(), queue }
        });
        drop(local);
        Some(then(StartedTask { task, cx: TaskContext { id, shard, width, long }, placement, waited }))
    }

    /// Pauses the worker: puts its batch back and lets another worker use the thread.
    pub(crate) fn pause(&self, mode: Mode) {
        let mut state = self.core.lock();
        state.pause(&self.slot, mode);
        self.core.unlock_and_scale(state);
    }

    /// The worker goes on after a pause.
    pub(crate) fn resume(&self) {
        self.core.lock().resume(&self.slot);
    }
}

/// Removes the task that a worker runs next: one that waits, else a helper of a running one.
fn next<P: PoolTypes>(
    state: &mut PoolState<P>,
    local: &mut LocalQueue<P>,
    own: WorkerKey,
) -> Option<AdmittedTask<P>> {
    let waiting = state.queue.take().or_else(|| steal(state, local, own));
    waiting.or_else(|| state.queue.take_helper())
}

/// Moves the older half of another worker's batch into the local queue. Returns the first task of it.
fn steal<P: PoolTypes>(
    state: &PoolState<P>,
    local: &mut LocalQueue<P>,
    own: WorkerKey,
) -> Option<AdmittedTask<P>> {
    for victim in state.active().filter(|victim| victim.key != own) {
        let mut from = victim.lock();
        let half = from.waiting().div_ceil(2);
        let mut stolen = from.drain(half);
        if let Some(first) = stolen.next() {
            local.extend(stolen);
            return Some(first);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::{
        engine::tests::{Slot, TestCore},
        id::TaskId,
        spec::Spec,
    };

    fn submit(test: &TestCore, tasks: std::ops::Range<u64>) {
        for number in tasks {
            test.submit(Spec::short(TaskId::number(number))).unwrap();
        }
    }

    /// A batch size that allows `size` tasks, however long the test takes.
    fn allows(size: usize) -> BatchSize {
        let mut batch_size = BatchSize::default();
        let later = std::time::Instant::now() + Duration::from_secs(3600);
        for _ in 0..size.ilog2() {
            batch_size.next(later);
            batch_size.taken(later, 1);
        }
        batch_size
    }

    /// Lets a worker take its next task. Returns its number and how many tasks wait in its batch.
    fn take(test: &TestCore, slot: &Slot, size: usize) -> Option<(String, usize)> {
        let mut cx = Context::from_waker(Waker::noop());
        match test.worker(slot).next_task(&mut allows(size), &mut cx) {
            Poll::Ready(Some(started)) => Some((started.cx.id().to_string(), slot.lock().waiting())),
            Poll::Ready(None) | Poll::Pending => None,
        }
    }

    #[test]
    fn a_worker_takes_a_batch_only_if_no_other_worker_is_free() {
        let test = TestCore::new(2..=2, 2);
        let first = test.add_worker();
        submit(&test, 0..20);
        // The submission has added the second worker, which is about to run.
        assert_eq!(take(&test, &first, 8), Some(("0".to_owned(), 7)));
        assert!(test.core.lock().ticking);

        let test = TestCore::new(2..=2, 2);
        let (first, second) = (test.add_worker(), test.add_worker());
        submit(&test, 0..20);
        test.core.lock().workers.become_idle(second.key, None, Waker::noop().clone());
        assert_eq!(take(&test, &first, 8), Some(("0".to_owned(), 0)));
    }

    #[test]
    fn a_batch_ends_before_a_task_that_is_not_plain() {
        let test = TestCore::new(1..=1, 1);
        let slot = test.add_worker();
        submit(&test, 0..3);
        test.submit(Spec::short("group").group("g")).unwrap();
        submit(&test, 3..9);
        assert_eq!(take(&test, &slot, 8), Some(("0".to_owned(), 2)));
    }

    #[test]
    fn a_task_on_a_thread_takes_no_batch_with_it() {
        let test = TestCore::new(1..=1, 1);
        let slot = test.add_worker();
        test.submit(Spec::short("thread").on_threads()).unwrap();
        submit(&test, 0..9);
        assert_eq!(take(&test, &slot, 8), Some(("thread".to_owned(), 0)));
    }

    #[test]
    fn a_worker_without_work_steals_the_older_half_of_a_batch() {
        let test = TestCore::new(2..=2, 1);
        let (first, second) = (test.add_worker(), test.add_worker());
        submit(&test, 0..8);
        assert_eq!(take(&test, &first, 8), Some(("0".to_owned(), 7)));
        assert_eq!(take(&test, &second, 1), Some(("1".to_owned(), 3)));
        assert_eq!(first.lock().waiting(), 3);
    }

    #[test]
    fn a_parked_worker_puts_its_batch_back_in_order() {
        let test = TestCore::new(2..=2, 1);
        let (first, second) = (test.add_worker(), test.add_worker());
        submit(&test, 0..8);
        assert_eq!(take(&test, &first, 4), Some(("0".to_owned(), 3)));
        assert_eq!(test.core.lock().workers.count(Mode::Running), 2);
        test.worker(&first).pause(Mode::Parked);
        test.worker(&first).pause(Mode::Parked);
        assert_eq!((first.lock().waiting(), test.core.lock().workers.count(Mode::Running)), (0, 1));
        assert_eq!(test.core.lock().waiting(), 7);
        for number in ["1", "2"] {
            assert_eq!(take(&test, &second, 1).unwrap().0, number);
            assert!(second.lock().finish().is_some());
        }
        test.worker(&first).resume();
        test.worker(&first).resume();
        assert_eq!(test.core.lock().workers.count(Mode::Running), 2);
    }

    #[test]
    fn a_worker_without_work_becomes_idle_or_exits() {
        let test = TestCore::new(1..=2, 2);
        let (first, second) = (test.add_worker(), test.add_worker());
        assert_eq!(take(&test, &first, 1), None);
        assert!(test.core.lock().workers.oldest_idle_since().is_some());
        first.request_exit();
        assert_eq!(take(&test, &first, 1), None);
        assert_eq!(test.core.lock().workers.count(Mode::Idle), 0);
        test.core.lock().remove_worker(&first);
        // The last worker belongs to the minimum.
        assert_eq!(take(&test, &second, 1), None);
        assert_eq!(test.core.lock().workers.count(Mode::Idle), 1);
        assert_eq!(test.core.lock().workers.oldest_idle_since(), None);
        test.core.lock().phase = Phase::Light;
        assert_eq!(take(&test, &second, 1), None);
        assert_eq!(test.core.lock().workers.count(Mode::Idle), 0);
    }
}
