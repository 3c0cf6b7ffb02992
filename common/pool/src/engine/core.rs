//! What the handles, the workers and the monitor of a pool share.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    counters::{Counters, Counts},
    observer_hook::ObserverHook,
};
use crate::{
    backoff::Backoff,
    completion::Completion,
    config::PoolConfig,
    options::PoolOptions,
    shutdown::Phase,
    spawn,
    state::{
        pool_state::{PoolState, Scaling},
        worker_slot::WorkerSlot,
    },
    task::Task,
    timer::Timer,
};

/// How often the monitor looks after batches and blocked threads, while there are any.
pub(crate) const TICK: Duration = Duration::from_millis(5);

/// Spawns a worker. Passed in, because workers are built on top of the core.
type SpawnWorker<T, C> = fn(Arc<PoolCore<T, C>>, Arc<WorkerSlot<T, C>>);

pub(crate) struct PoolCore<T: Task, C: Completion<T::Output>> {
    pub(crate) config: PoolConfig,
    pub(crate) observer: ObserverHook,
    pub(crate) backoff: Backoff,
    /// The runtime of the tasks.
    pub(crate) runtime: runtime::Handle,
    /// The number of threads of that runtime.
    threads: usize,
    state: Mutex<PoolState<T, C>>,
    pub(crate) timer: Timer,
    pub(crate) counters: Counters,
    /// Workers that were abandoned and have not returned.
    pub(crate) stuck: AtomicU64,
    /// Cancelled when a shutdown begins.
    pub(crate) closing: CancellationToken,
    /// Cancelled when a shutdown is complete.
    pub(crate) closed: CancellationToken,
    /// The endings before the shutdown began.
    pub(crate) baseline: OnceLock<Counts>,
    name: Arc<str>,
    spawn_worker: SpawnWorker<T, C>,
}

impl<T: Task, C: Completion<T::Output>> PoolCore<T, C> {
    pub(crate) fn new(
        config: PoolConfig,
        options: PoolOptions,
        runtime: runtime::Handle,
        spawn_worker: SpawnWorker<T, C>,
    ) -> Arc<Self> {
        let PoolOptions { observer, restart } = options;
        Arc::new(Self {
            name: config.name.as_str().into(),
            config,
            observer: ObserverHook::new(observer),
            backoff: restart,
            threads: runtime.metrics().num_workers(),
            runtime,
            state: Mutex::new(PoolState::new()),
            timer: Timer::new(),
            counters: Counters::default(),
            stuck: AtomicU64::new(0),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
            baseline: OnceLock::new(),
            spawn_worker,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PoolState<T, C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names an internal task or thread for log lines.
    pub(crate) fn name(&self, role: &'static str) -> spawn::Name {
        spawn::Name { pool: Arc::clone(&self.name), role }
    }

    /// The time for an observed pool, whose tasks are timed.
    pub(crate) fn observed_now(&self) -> Option<Instant> {
        self.observer.is_set().then(Instant::now)
    }

    fn has_free_thread(&self, state: &PoolState<T, C>) -> bool {
        state.running() < self.threads
    }

    /// Whether another worker could start a task at once: there is one, and a thread of the runtime for it.
    pub(crate) fn has_free_worker(&self, state: &PoolState<T, C>) -> bool {
        self.has_free_thread(state)
            && (!state.idle.is_empty() || state.workers.len() < *self.config.workers.end())
    }

    /// Finds a worker for a waiting task, if a thread of the runtime is free: more busy workers than threads
    /// would only cause context switches. A worker whose task waits therefore calls the next one.
    fn scale(&self, state: &mut PoolState<T, C>) -> Scaling<T, C> {
        if state.phase == Phase::Open && state.workers.len() < *self.config.workers.start() {
            return Scaling::Spawn(state.workers.add());
        }
        if state.queue.has_work() && self.has_free_thread(state) {
            self.find_worker(state)
        } else {
            Scaling::None
        }
    }

    /// Finds a worker for a waiting task although the runtime's threads seem busy: one may be blocked.
    fn scale_beyond_threads(&self, state: &mut PoolState<T, C>) -> Scaling<T, C> {
        if state.queue.has_work() { self.find_worker(state) } else { self.scale(state) }
    }

    fn find_worker(&self, state: &mut PoolState<T, C>) -> Scaling<T, C> {
        state.find_worker(*self.config.workers.end())
    }

    /// Wakes or spawns the worker that waiting tasks need, after releasing the lock.
    ///
    /// Every change that can make a task startable or a thread free ends with this call. It starts one worker;
    /// that worker starts the next one while there is work.
    pub(crate) fn unlock_and_scale(self: &Arc<Self>, mut state: MutexGuard<'_, PoolState<T, C>>) {
        let scaling = self.scale(&mut state);
        drop(state);
        self.apply(scaling);
    }

    /// Like [`unlock_and_scale`](Self::unlock_and_scale), for a worker that has taken a task. Also makes the
    /// monitor tick while `batched` tasks wait behind a running one or while threads limit the workers.
    pub(crate) fn unlock_and_tick(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, PoolState<T, C>>,
        batched: bool,
    ) {
        let scaling = self.scale(&mut state);
        let tick = self.start_ticking(&mut state, batched);
        drop(state);
        self.wake(scaling, tick);
    }

    /// Ends a tick of the monitor: starts a worker even if all threads seem busy, and ticks again if needed.
    pub(crate) fn unlock_after_tick(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, PoolState<T, C>>,
        batched: bool,
    ) {
        state.ticking = false;
        let tick = state.running() > 0 && self.start_ticking(&mut state, batched);
        let scaling = self.scale_beyond_threads(&mut state);
        drop(state);
        self.wake(scaling, tick);
    }

    /// Returns true if the monitor must now be woken for a tick.
    fn start_ticking(&self, state: &mut PoolState<T, C>, batched: bool) -> bool {
        let needed = batched || *self.config.workers.end() > self.threads;
        needed && !std::mem::replace(&mut state.ticking, true)
    }

    fn wake(self: &Arc<Self>, scaling: Scaling<T, C>, tick: bool) {
        self.apply(scaling);
        if tick {
            self.timer.wake_by(Instant::now() + TICK);
        }
    }

    fn apply(self: &Arc<Self>, scaling: Scaling<T, C>) {
        match scaling {
            Scaling::None => {}
            Scaling::Wake(waker) => waker.wake(),
            Scaling::Spawn(slot) => (self.spawn_worker)(Arc::clone(self), slot),
        }
    }

    pub(crate) fn counts(&self, state: &PoolState<T, C>) -> Counts {
        self.counters.read(state.ended + state.uncounted())
    }

    /// The task of an abandoned worker returned.
    pub(crate) fn stuck_worker_returned(&self) {
        self.stuck.fetch_sub(1, Ordering::AcqRel);
    }

    /// Keeps the pool from closing until the returned guard is dropped, which must happen without the lock.
    pub(crate) fn hold_open(self: &Arc<Self>, state: &mut PoolState<T, C>) -> HoldOpen<T, C> {
        state.holds += 1;
        HoldOpen(Arc::clone(self))
    }

    /// Closes the pool if it is shutting down and nothing is left to do.
    pub(crate) fn close_if_done(&self, mut state: MutexGuard<'_, PoolState<T, C>>) {
        let stopping = state.phase > Phase::Open && state.phase != Phase::Closed;
        if stopping && state.workers.len() == 0 && state.holds == 0 && state.waiting() == 0 {
            state.phase = Phase::Closed;
            drop(state);
            self.closed.cancel();
        }
    }
}

/// Keeps a pool from closing while completions of removed tasks are called.
pub(crate) struct HoldOpen<T: Task, C: Completion<T::Output>>(Arc<PoolCore<T, C>>);

impl<T: Task, C: Completion<T::Output>> Drop for HoldOpen<T, C> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.holds -= 1;
        self.0.close_if_done(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::test_core::TestCore, spec::Spec};

    #[test]
    fn another_worker_is_free_while_there_are_threads_and_workers() {
        let test = TestCore::new(1..=2, 2);
        let is_free = || test.core.has_free_worker(&test.core.lock());
        assert!(is_free());
        let first = test.add_worker();
        assert!(is_free());
        let second = test.add_worker();
        // Two busy workers on two threads.
        assert!(!is_free());
        test.core.lock().set_parked(&first, true);
        // A thread is free, but no worker.
        assert!(!is_free());
        test.core.lock().idle.push(second.key, None, std::task::Waker::noop().clone());
        assert!(is_free());
        let one_thread = TestCore::new(1..=2, 1);
        one_thread.add_worker();
        // A worker is free, but no thread.
        assert!(!one_thread.core.has_free_worker(&one_thread.core.lock()));
    }

    #[test]
    fn workers_are_added_for_waiting_tasks_up_to_the_threads_and_the_maximum() {
        let workers = |test: &TestCore| test.core.lock().workers.len();
        let test = TestCore::new(1..=3, 2);
        for expected in [1, 2, 2, 2] {
            test.submit(Spec::short("a")).unwrap();
            assert_eq!(workers(&test), expected);
        }
        // At a tick, all threads may be blocked.
        for _ in 0..3 {
            test.core.unlock_after_tick(test.core.lock(), false);
            assert_eq!(workers(&test), 3);
        }
        let idle = TestCore::new(2..=3, 2);
        for expected in [1, 2, 2] {
            idle.core.unlock_and_scale(idle.core.lock());
            assert_eq!(workers(&idle), expected);
        }
        idle.core.unlock_after_tick(idle.core.lock(), false);
        assert_eq!(workers(&idle), 2);
    }

    #[test]
    fn the_monitor_ticks_for_batches_and_for_workers_beyond_the_threads() {
        let ticking = |test: &TestCore, batched| {
            test.core.unlock_and_tick(test.core.lock(), batched);
            test.core.lock().ticking
        };
        assert!(!ticking(&TestCore::new(1..=2, 2), false));
        assert!(ticking(&TestCore::new(1..=2, 2), true));
        let more_workers = TestCore::new(1..=3, 2);
        assert!(ticking(&more_workers, false));
        // Only the first call wakes the monitor.
        assert!(!more_workers.core.start_ticking(&mut more_workers.core.lock(), false));
        more_workers.core.unlock_after_tick(more_workers.core.lock(), false);
        assert!(more_workers.core.lock().ticking);
        // Nothing runs: the next task starts the ticks again.
        let idle = TestCore::new(1..=3, 2);
        let slot = idle.add_worker();
        idle.core.lock().idle.push(slot.key, None, std::task::Waker::noop().clone());
        idle.core.unlock_after_tick(idle.core.lock(), true);
        assert!(!idle.core.lock().ticking);
    }

    #[test]
    fn the_pool_closes_when_it_is_stopping_and_nothing_is_left() {
        let test = TestCore::new(1..=2, 2);
        let close = |phase: Phase| {
            test.core.lock().phase = phase;
            test.core.close_if_done(test.core.lock());
            test.core.closed.is_cancelled()
        };
        assert!(!close(Phase::Open));
        let slot = test.add_worker();
        assert!(!close(Phase::Soft));
        assert!(test.core.lock().remove_worker(&slot));
        assert!(!test.core.lock().remove_worker(&slot));
        let hold = test.core.hold_open(&mut test.core.lock());
        assert!(!close(Phase::Soft));
        drop(hold);
        assert!(test.core.closed.is_cancelled());
        assert_eq!(test.core.lock().phase, Phase::Closed);
    }
}
