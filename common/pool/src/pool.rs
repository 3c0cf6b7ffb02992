//! The pool.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use tokio::runtime;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{ConfigError, PoolConfig, PoolOptions, Simulation},
    ending::Cause,
    engine::{admission, core::PoolCore, finish, inspect, monitor, orders, worker_task},
    group::Group,
    handle::{Batch, Handle, HandleState},
    id::{GroupName, TaskId},
    pool_types::TypesOf,
    refusal::{Refusal, Refused},
    shutdown::{Report, Stop},
    snapshot::Snapshot,
    spawn,
    spec::Spec,
    task::{Completion, Task},
};

/// A running pool. A clone is another reference to the same pool.
///
/// When the last reference is dropped, the pool shuts down as by [`Stop::Soft`]: running tasks end, queued ones are
/// handed back.
pub struct Pool<T: Task, C: Completion<T::Output>> {
    guard: Arc<PoolGuard<T, C>>,
}

impl<T: Task, C: Completion<T::Output>> fmt::Debug for Pool<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.core().config.name).finish_non_exhaustive()
    }
}

/// Shuts the pool down when the last reference is dropped.
struct PoolGuard<T: Task, C: Completion<T::Output>>(Arc<PoolCore<TypesOf<T, C>>>);

impl<T: Task, C: Completion<T::Output>> Drop for PoolGuard<T, C> {
    fn drop(&mut self) {
        orders::begin_shutdown(&self.0, Stop::Soft);
    }
}

impl<T: Task, C: Completion<T::Output>> Clone for Pool<T, C> {
    fn clone(&self) -> Self {
        Self { guard: Arc::clone(&self.guard) }
    }
}

impl<T: Task, C: Completion<T::Output>> Pool<T, C> {
    /// Starts a pool whose tasks run on the runtime `tasks`.
    ///
    /// The pool's timer runs on the current runtime if there is one, otherwise on `tasks`. Tasks that block the
    /// threads of `tasks` delay neither deadlines nor shutdowns if the current runtime is another one.
    ///
    /// # Errors
    /// The configuration is not allowed.
    pub fn start(config: PoolConfig, tasks: runtime::Handle) -> Result<Self, ConfigError> {
        Self::start_with(config, tasks, PoolOptions::default())
    }

    /// Starts a pool with an observer, or with other pauses after panics.
    ///
    /// # Errors
    /// The configuration is not allowed.
    pub fn start_with(
        config: PoolConfig,
        tasks: runtime::Handle,
        options: PoolOptions,
    ) -> Result<Self, ConfigError> {
        Self::start_in(None, config, tasks, options)
    }

    /// As [`start_with`](Self::start_with), in a simulation on one thread.
    ///
    /// # Errors
    /// The configuration is not allowed.
    #[doc(hidden)]
    pub fn start_simulated(
        simulation: Simulation,
        config: PoolConfig,
        tasks: runtime::Handle,
        options: PoolOptions,
    ) -> Result<Self, ConfigError> {
        Self::start_in(Some(simulation), config, tasks, options)
    }

    fn start_in(
        simulation: Option<Simulation>,
        config: PoolConfig,
        tasks: runtime::Handle,
        options: PoolOptions,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let control = runtime::Handle::try_current().unwrap_or_else(|_| tasks.clone());
        let core = PoolCore::new(simulation, config, options, tasks, worker_task::spawn);
        let monitored = Arc::clone(&core);
        let monitor = move || monitor::run(Arc::clone(&monitored));
        spawn::restarting(&core.spawner(&control), &core.config.name, "monitor", monitor);
        for _ in 0..*core.config.workers.start() {
            core.unlock_and_scale(core.lock());
        }
        Ok(Self { guard: Arc::new(PoolGuard(core)) })
    }

    fn core(&self) -> &Arc<PoolCore<TypesOf<T, C>>> {
        &self.guard.0
    }

    /// Submits a task and returns a handle to it. Never waits.
    ///
    /// # Errors
    /// The [`Refusal`], together with the task and the completion.
    pub fn submit(&self, spec: Spec, task: T, completion: C) -> Result<Handle, Refused<(T, C)>> {
        let (id, state) = (spec.id.clone(), HandleState::new());
        let seq = admission::admit(self.core(), spec, task, completion, Some(Arc::clone(&state)))?;
        Ok(Handle { id, seq, state, stopper: Arc::<PoolCore<_>>::clone(self.core()) })
    }

    /// Submits a task without a handle. Does not allocate, except to grow the queue.
    ///
    /// # Errors
    /// The [`Refusal`], together with the task and the completion.
    pub fn submit_detached(&self, spec: Spec, task: T, completion: C) -> Result<(), Refused<(T, C)>> {
        admission::admit(self.core(), spec, task, completion, None).map(drop)
    }

    /// Submits tasks from the front of `tasks`, without handles. Costs less than submitting them one by one.
    ///
    /// Admitted tasks are removed from `tasks`. The first refused task and all behind it stay.
    ///
    /// # Errors
    /// The [`Refusal`] of the first task that was not admitted.
    pub fn submit_each(&self, tasks: &mut VecDeque<(Spec, T, C)>) -> Result<(), Refusal> {
        admission::admit_each(self.core(), tasks)
    }

    /// Submits all tasks or none.
    ///
    /// # Errors
    /// The [`Refusal`] of the first task that cannot be admitted, together with all tasks and completions.
    #[expect(clippy::type_complexity, reason = "a refusal returns what was submitted")]
    pub fn submit_together(&self, tasks: Vec<(Spec, T, C)>) -> Result<Batch, Refused<Vec<(Spec, T, C)>>> {
        admission::admit_together(self.core(), tasks)
    }

    /// Removes the tasks with this id from the queue, or cancels them if they are running long tasks.
    ///
    /// Returns false if there is no such task, or only a running short one.
    pub fn stop(&self, id: &TaskId) -> bool {
        finish::stop_matching(self.core(), Cause::Stopped, |_, spec| spec.id == *id) > 0
    }

    /// Hands back tasks that have been queued for longer than `longer_than`, as a shutdown would. Returns how many.
    ///
    /// The pool records when a task was submitted only if it has an [`Observer`](crate::Observer). Without one, this
    /// method does nothing.
    pub fn hand_back_waiting(&self, longer_than: Duration) -> usize {
        orders::hand_back_waiting(self.core(), longer_than)
    }

    /// Makes a worker exit after its current task. `now` also cancels that task, if it is a long one.
    ///
    /// The pool starts another worker if it then has fewer than its minimum. Returns false if there is no such worker.
    pub fn stop_worker(&self, worker: u64, now: bool) -> bool {
        orders::stop_worker(self.core(), worker, now)
    }

    /// Controls a group of tasks.
    #[must_use]
    pub fn group(&self, name: impl Into<GroupName>) -> Group<'_, T, C> {
        Group { core: self.core(), name: name.into() }
    }

    /// The state of the pool at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        inspect::snapshot(self.core())
    }

    /// Begins a shutdown, or makes the one in progress harder. Never waits; see [`stopped`](Self::stopped).
    pub fn begin_shutdown(&self, stop: Stop) {
        orders::begin_shutdown(self.core(), stop);
    }

    /// Begins a shutdown when `parent` is cancelled.
    ///
    /// # Panics
    /// If called outside of a Tokio runtime.
    pub fn stop_with(&self, parent: CancellationToken, stop: Stop) {
        let core = Arc::downgrade(self.core());
        let closing = self.core().closing.clone();
        let stop_on_cancel = async move {
            let cancelled = closing.run_until_cancelled(parent.cancelled()).await.is_some();
            if let (true, Some(core)) = (cancelled, core.upgrade()) {
                orders::begin_shutdown(&core, stop);
            }
        };
        let (core, runtime) = (self.core(), runtime::Handle::current());
        spawn::once(&core.spawner(&runtime), &core.config.name, "stop on cancel", stop_on_cancel, |_| {});
    }

    /// Waits until a shutdown is complete: every task has ended, every completion was called, and every worker has
    /// exited or was abandoned.
    pub async fn stopped(&self) -> Report {
        self.core().closed.cancelled().await;
        inspect::report(self.core())
    }
}
