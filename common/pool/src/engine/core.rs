//! The state that the handles, the workers and the monitor of a pool share.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::{Duration, Instant as StdInstant},
};

use tokio::{runtime, time::Instant};
use tokio_util::sync::CancellationToken;

use super::counters::Counters;
use crate::{
    config::{PoolConfig, PoolOptions, Simulation},
    context::Queue,
    observer::Observer,
    panic::{catch, lock},
    pool_types::PoolTypes,
    shutdown::Phase,
    snapshot::Totals,
    spawn::Spawner,
    state::{
        pool_state::{LockedState, PoolState},
        worker_slot::WorkerSlot,
        workers::Mode,
    },
    timer::Timer,
};

/// How often the monitor looks after batches and blocked threads, while there are any.
pub(crate) const TICK: Duration = Duration::from_millis(5);

/// Spawns a worker. Passed in, because workers are built on top of the core.
type SpawnWorker<P> = fn(Arc<PoolCore<P>>, Arc<WorkerSlot<P>>);

pub(crate) struct PoolCore<P: PoolTypes> {
    pub(crate) config: PoolConfig,
    pub(crate) options: PoolOptions,
    simulation: Option<Simulation>,
    observer_panics: AtomicU64,
    /// The runtime of the tasks.
    pub(crate) runtime: runtime::Handle,
    /// The number of threads of that runtime.
    pub(crate) threads: usize,
    state: Mutex<PoolState<P>>,
    pub(crate) timer: Timer,
    pub(crate) counters: Counters,
    /// Workers that were abandoned and have not returned.
    pub(crate) stuck: AtomicU64,
    /// Cancelled when a shutdown begins.
    pub(crate) closing: CancellationToken,
    /// Cancelled when a shutdown is complete.
    pub(crate) closed: CancellationToken,
    /// The endings before the shutdown began.
    pub(crate) baseline: OnceLock<Totals>,
    spawn_worker: SpawnWorker<P>,
}

/// Changes of workers to make once the lock is released.
enum Scaling<P: PoolTypes> {
    None,
    Wake(Waker),
    Spawn(Arc<WorkerSlot<P>>),
}

impl<P: PoolTypes> PoolCore<P> {
    pub(crate) fn new(
        simulation: Option<Simulation>,
        config: PoolConfig,
        options: PoolOptions,
        runtime: runtime::Handle,
        spawn_worker: SpawnWorker<P>,
    ) -> Arc<Self> {
        Arc::new(Self {
            observer_panics: AtomicU64::new(0),
            // One thread is never blocked in a simulation, so that its monitor needs no ticks.
            threads: match simulation {
                Some(_) => *config.workers.end(),
                None => runtime.metrics().num_workers(),
            },
            config,
            options,
            simulation,
            runtime,
            state: Mutex::default(),
            timer: Timer::new(),
            counters: Counters::default(),
            stuck: AtomicU64::new(0),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
            baseline: OnceLock::new(),
            spawn_worker,
        })
    }

    pub(crate) fn lock(&self) -> LockedState<'_, P> {
        lock(&self.state)
    }

    /// The time for an observed pool, whose tasks are timed.
    pub(crate) fn observed_now(&self) -> Option<Instant> {
        self.options.observer.is_some().then(Instant::now)
    }

    /// A random number, uniform in `0.0..1.0`.
    pub(crate) fn random(&self) -> f64 {
        self.simulation.map_or_else(fastrand::f64, |simulation| (simulation.random)())
    }

    /// Spawns on this runtime, or as the simulation does.
    pub(crate) fn spawner(&self, runtime: &runtime::Handle) -> Spawner {
        match self.simulation {
            Some(Simulation { spawn, .. }) => Spawner::Simulation(spawn),
            None => Spawner::Runtime(runtime.clone()),
        }
    }

    /// The time for the sizes of batches.
    pub(crate) fn batch_now(&self) -> StdInstant {
        match self.simulation {
            Some(_) => Instant::now().into_std(),
            None => StdInstant::now(),
        }
    }

    /// Calls the observer, if there is one, and keeps its panics from the workers.
    pub(crate) fn observe(&self, call: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = self.options.observer.as_deref()
            && let Err(panic) = catch(|| call(observer))
        {
            let panics = self.observer_panics.fetch_add(1, Ordering::Relaxed) + 1;
            // It may panic for each task, a million times a second.
            if panics.is_power_of_two() {
                tracing::error!(pool = self.config.name, panic, panics, "observer panicked");
            }
        }
    }

    fn has_free_thread(&self, state: &PoolState<P>) -> bool {
        state.workers.count(Mode::Running) < self.threads
    }

    /// Whether another worker could start a task at once: there is one, and a thread of the runtime for it.
    pub(crate) fn has_free_worker(&self, state: &PoolState<P>) -> bool {
        self.has_free_thread(state)
            && (state.workers.count(Mode::Idle) > 0 || state.workers.len() < *self.config.workers.end())
    }

    /// Finds a worker for a waiting task: an idle one, or a new one if there are fewer than the maximum. More busy
    /// workers than threads of the runtime would only cause context switches. A worker whose task waits therefore
    /// calls the next one. `beyond_threads` ignores that limit: a thread that seems busy may be blocked.
    fn scale(&self, state: &mut PoolState<P>, beyond_threads: bool) -> Scaling<P> {
        if state.phase == Phase::Open && state.workers.len() < *self.config.workers.start() {
            return Scaling::Spawn(state.workers.add());
        }
        if !state.queue.has_work() || !(beyond_threads || self.has_free_thread(state)) {
            return Scaling::None;
        }
        if let Some(waker) = state.workers.take_newest_idle() {
            Scaling::Wake(waker)
        } else if state.workers.len() < *self.config.workers.end() && state.phase != Phase::Closed {
            Scaling::Spawn(state.workers.add())
        } else {
            Scaling::None
        }
    }

    /// Wakes or spawns the worker that waiting tasks need, after releasing the lock.
    ///
    /// Every change that can make a task startable or a thread free ends with this call. It starts one worker;
    /// that worker starts the next one while there is work.
    pub(crate) fn unlock_and_scale(self: &Arc<Self>, mut state: LockedState<'_, P>) {
        let scaling = self.scale(&mut state, false);
        self.unlock(state, scaling, false);
    }

    /// Like [`unlock_and_scale`](Self::unlock_and_scale), for a worker that goes on to run a task. Also makes the
    /// monitor tick while `batched` tasks wait behind a running one, while threads limit the workers, and until the
    /// worker that was called has come.
    pub(crate) fn unlock_and_tick(self: &Arc<Self>, mut state: LockedState<'_, P>, batched: bool) {
        let scaling = self.scale(&mut state, false);
        let called = !matches!(scaling, Scaling::None);
        let tick = self.start_ticking(&mut state, batched || called);
        self.unlock(state, scaling, tick);
    }

    /// Ends a tick of the monitor: starts a worker even if all threads seem busy, and ticks again if needed.
    /// `watched`: a worker holds a batch or has not come yet.
    pub(crate) fn unlock_after_tick(self: &Arc<Self>, mut state: LockedState<'_, P>, watched: bool) {
        state.ticking = false;
        let tick = state.workers.count(Mode::Running) > 0 && self.start_ticking(&mut state, watched);
        let scaling = self.scale(&mut state, true);
        self.unlock(state, scaling, tick);
    }

    /// Returns true if the monitor must now be woken for a tick.
    fn start_ticking(&self, state: &mut PoolState<P>, watched: bool) -> bool {
        let needed = watched || *self.config.workers.end() > self.threads;
        needed && !std::mem::replace(&mut state.ticking, true)
    }

    fn unlock(self: &Arc<Self>, state: LockedState<'_, P>, scaling: Scaling<P>, tick: bool) {
        drop(state);
        match scaling {
            Scaling::None => {}
            Scaling::Wake(waker) => waker.wake(),
            Scaling::Spawn(slot) => (self.spawn_worker)(Arc::clone(self), slot),
        }
        if tick {
            self.timer.wake_by(Instant::now() + TICK);
        }
    }

    /// The endings of all tasks until now.
    pub(crate) fn totals(&self, state: &PoolState<P>) -> Totals {
        self.counters.totals(state.admitted, state.ended + state.uncounted())
    }

    /// Keeps the pool from closing until the returned guard is dropped, which must happen without the lock.
    pub(crate) fn hold_open(self: &Arc<Self>, state: &mut PoolState<P>) -> HoldOpen<P> {
        state.holds += 1;
        HoldOpen(Arc::clone(self))
    }

    /// Closes the pool if it is shutting down and nothing is left to do.
    pub(crate) fn close_if_done(&self, mut state: LockedState<'_, P>) {
        let stopping = state.phase > Phase::Open && state.phase != Phase::Closed;
        if stopping && state.workers.len() == 0 && state.holds == 0 && state.waiting() == 0 {
            state.phase = Phase::Closed;
            drop(state);
            self.closed.cancel();
        }
    }
}

impl<P: PoolTypes> Queue for PoolCore<P> {
    fn tasks_wait(&self) -> bool {
        self.lock().tasks_wait()
    }
}

/// Keeps a pool from closing while completions of removed tasks are called.
pub(crate) struct HoldOpen<P: PoolTypes>(Arc<PoolCore<P>>);

impl<P: PoolTypes> Drop for HoldOpen<P> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.holds -= 1;
        self.0.close_if_done(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::tests::TestCore, spec::Spec};

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
        test.core.lock().pause(&first, Mode::Parked);
        // A thread is free, but no worker.
        assert!(!is_free());
        test.core.lock().workers.become_idle(second.key, None, Waker::noop().clone());
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
        let test = TestCore::new(1..=2, 2);
        // This call adds the first worker, which has not come yet.
        assert!(ticking(&test, false));
        test.core.lock().ticking = false;
        assert!(!ticking(&test, false));
        assert!(ticking(&test, true));
        let more_workers = TestCore::new(1..=3, 2);
        assert!(ticking(&more_workers, false));
        // Only the first call wakes the monitor.
        assert!(!more_workers.core.start_ticking(&mut more_workers.core.lock(), false));
        more_workers.core.unlock_after_tick(more_workers.core.lock(), false);
        assert!(more_workers.core.lock().ticking);
        // Nothing runs: the next task starts the ticks again.
        let idle = TestCore::new(1..=3, 2);
        let slot = idle.add_worker();
        idle.core.lock().workers.become_idle(slot.key, None, Waker::noop().clone());
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
