//! A local bounded pool: runs tasks, knows nothing of what they are for.
//!
//! Tasks are admitted up to a bound, started first in, first started by `min..max` workers, and end
//! in exactly one [`Ending`], which reaches the [`Completion`] they were submitted with. A *short*
//! task has no timer and cannot be interrupted; a *long* one has a deadline and is told to stop before
//! it is given up. The states of tasks, workers and pool are drawn in `docs/states.md`.
//!
//! ```
//! use std::time::Duration;
//! use garenne_common::pool::{OnEnd, Pool, PoolConfig, Spec, Stop, Task, TaskContext};
//!
//! struct Double(u64);
//! impl Task for Double {
//!     type Output = u64;
//!     async fn run(self, _cx: TaskContext) -> u64 {
//!         self.0 * 2
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = PoolConfig {
//!     name: "example".to_owned(),
//!     queue: 100,
//!     workers: 1..=4,
//!     idle_timeout: Duration::from_secs(10),
//!     default_deadline: Duration::from_secs(30),
//!     grace: Duration::from_secs(2),
//! };
//! let pool = Pool::start(config, tokio::runtime::Handle::current())?;
//! let handle = pool.submit(Spec::short("a"), Double(21), OnEnd(|ending| println!("{ending:?}")))?;
//! handle.wait().await;
//! pool.begin_shutdown(Stop::Soft);
//! pool.stopped().await;
//! # Ok(()) }
//! ```

mod admit;
mod atomic;
mod board;
mod cell;
mod config;
mod ending;
mod entry;
mod finish;
mod group;
mod handle;
mod id;
mod idle;
mod lane;
mod oneshot;
mod order;
mod refusal;
mod shared;
mod shutdown;
mod signal;
mod snapshot;
mod task;
mod turn;
mod turns;
mod view;
mod watch;
mod wide;
mod worker;

use std::{collections::VecDeque, sync::Arc};

use tokio::runtime;
use tokio_util::sync::CancellationToken;

pub use self::{
    config::{ConfigError, PoolConfig},
    ending::{Cause, Completion, Ending, EndingKind, OnEnd, Outcome},
    group::{Batch, Group},
    handle::{Handle, Status},
    id::{GroupName, TaskId},
    oneshot::{Attempt, run_all},
    refusal::{Refusal, Refused},
    shared::PoolOptions,
    shutdown::{Phase, Report, Stop},
    snapshot::{GroupView, Observer, RunningTask, Snapshot, TaskState, Totals, Workers},
    task::{Placement, Run, Spec, Task, TaskContext},
    turns::panic_message,
    worker::Backoff,
};
use self::{handle::HandleState, shared::Shared};

/// A running pool. Clones are the same pool; when the last is dropped it shuts down softly.
pub struct Pool<T: Task, C: Completion<T::Output>> {
    last: Arc<Last<T, C>>,
}

/// Shuts the pool down when nobody can submit to it or stop it any more.
struct Last<T: Task, C: Completion<T::Output>>(Arc<Shared<T, C>>);

impl<T: Task, C: Completion<T::Output>> Drop for Last<T, C> {
    fn drop(&mut self) {
        self.0.begin_shutdown(Stop::Soft);
    }
}

impl<T: Task, C: Completion<T::Output>> Clone for Pool<T, C> {
    fn clone(&self) -> Self {
        Self { last: Arc::clone(&self.last) }
    }
}

impl<T: Task, C: Completion<T::Output>> Pool<T, C> {
    /// Starts a pool whose tasks run on `tasks`. Its timer runs on the calling runtime where there is
    /// one, so start it from a runtime that tasks cannot keep busy.
    ///
    /// # Errors
    /// A configuration that cannot work.
    pub fn start(config: PoolConfig, tasks: runtime::Handle) -> Result<Self, ConfigError> {
        Self::start_with(config, tasks, PoolOptions::default())
    }

    /// The same, with an observer or other pauses after panics.
    ///
    /// # Errors
    /// A configuration that cannot work.
    pub fn start_with(
        config: PoolConfig,
        tasks: runtime::Handle,
        options: PoolOptions,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let control = runtime::Handle::try_current().unwrap_or_else(|_| tasks.clone());
        let shared = Shared::new(config, options, tasks);
        control.spawn(watch::watch(Arc::clone(&shared)));
        for _ in 0..*shared.config.workers.start() {
            shared.restaff();
        }
        Ok(Self { last: Arc::new(Last(shared)) })
    }

    fn shared(&self) -> &Arc<Shared<T, C>> {
        &self.last.0
    }

    /// Submits a task and answers a handle to it.
    ///
    /// # Errors
    /// A [`Refusal`], with the task and the completion given back.
    pub fn submit(&self, spec: Spec, task: T, completion: C) -> Result<Handle, Refused<(T, C)>> {
        let state = Arc::new(HandleState::default());
        let id = spec.id.clone();
        let seq = self.shared().admit(spec, task, completion, Some(Arc::clone(&state)))?;
        Ok(Handle { id, seq, state, control: Arc::clone(self.shared()) as Arc<dyn handle::Control> })
    }

    /// Submits a task nobody needs a handle to; allocates nothing.
    ///
    /// # Errors
    /// A [`Refusal`], with the task and the completion given back.
    pub fn submit_detached(&self, spec: Spec, task: T, completion: C) -> Result<(), Refused<(T, C)>> {
        self.shared().admit(spec, task, completion, None).map(drop)
    }

    /// The same for many, from the front, which costs less than one by one. What was taken in has left
    /// `tasks`; the refused one and all behind it are still there.
    ///
    /// # Errors
    /// The [`Refusal`] of the first that does not fit.
    pub fn submit_each(&self, tasks: &mut VecDeque<(Spec, T, C)>) -> Result<(), Refusal> {
        self.shared().admit_each(tasks)
    }

    /// Submits all of these or none.
    ///
    /// # Errors
    /// The [`Refusal`] of the first that does not fit, with everything given back.
    #[expect(clippy::type_complexity, reason = "what came in goes out again")]
    pub fn submit_together(&self, tasks: Vec<(Spec, T, C)>) -> Result<Batch, Refused<Vec<(Spec, T, C)>>> {
        self.shared().admit_together(tasks)
    }

    /// Takes the tasks with this id out of the queue, or tells them to stop. False when there is
    /// none, or only a short one that is running.
    pub fn stop(&self, id: &TaskId) -> bool {
        self.shared().stop_where(Cause::Stopped, |_, other, _| other == id) > 0
    }

    /// Hands back, as a shutdown would, the tasks that have waited longer than this; answers how many.
    /// Waits are known only to a pool with an [`Observer`].
    pub fn hand_back_waiting(&self, longer_than: std::time::Duration) -> usize {
        self.shared().hand_back_waiting(longer_than)
    }

    /// Sends a worker home: after its current task, or, `now`, telling that task to stop. The pool
    /// keeps its minimum by starting another. False when there is no such worker.
    pub fn stop_worker(&self, worker: u64, now: bool) -> bool {
        self.shared().stop_worker(worker, now)
    }

    /// Orders to a group.
    #[must_use]
    pub fn group(&self, name: impl Into<GroupName>) -> Group<'_, T, C> {
        Group { pool: self, name: name.into() }
    }

    /// One consistent look at everything.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared().snapshot()
    }

    /// Begins a shutdown, or makes the one under way harder. Never waits.
    pub fn begin_shutdown(&self, stop: Stop) {
        self.shared().begin_shutdown(stop);
    }

    /// Begins a shutdown when `parent` is cancelled. Needs to be called on a runtime.
    pub fn stop_with(&self, parent: CancellationToken, stop: Stop) {
        let shared = Arc::downgrade(self.shared());
        let closing = self.shared().closing.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = closing.cancelled() => {}
                () = parent.cancelled() => {
                    if let Some(shared) = shared.upgrade() {
                        shared.begin_shutdown(stop);
                    }
                }
            }
        });
    }

    /// Waits until a shutdown is complete: every task has ended, every completion was called, and
    /// every worker has left or was written off.
    pub async fn stopped(&self) -> Report {
        self.shared().closed.cancelled().await;
        self.shared().report()
    }
}

impl<T: Task, C: Completion<T::Output>> std::fmt::Debug for Pool<T, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("name", &self.shared().config.name).finish_non_exhaustive()
    }
}
