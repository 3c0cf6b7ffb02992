//! A bounded local worker pool for [Tokio](https://docs.rs/tokio).
//!
//! A [`Pool`] runs tasks of one type on a limited number of workers and holds a limited number of tasks. It starts
//! tasks in the order in which they were submitted, and it accounts for each of them: an admitted task ends in
//! exactly one [`Ending`], even if it panics, blocks its thread or loses its runtime.
//!
//! # The life of a task
//!
//! **Submitted.** [`Pool::submit`] takes a [`Spec`] (how to run the task), a [`Task`] (the work) and a
//! [`Completion`] (who receives the ending). It never waits: the task is *admitted*, or returned in a [`Refused`]
//! with the reason, a [`Refusal`].
//!
//! **Queued.** An admitted task waits until a worker takes it. [`PoolConfig::queue`] limits the number of queued and
//! running tasks together, so that a caller can reserve as much work elsewhere (a prefetch limit, a connection
//! limit) as the pool can hold. While tasks wait, the pool grows to the maximum of [`PoolConfig::workers`]; workers
//! above the minimum exit after [`PoolConfig::idle_timeout`].
//!
//! **Running.** The worker runs [`Task::run`] in place, on the runtime or, with [`Spec::on_threads`], on a thread of
//! its own.
//!
//! - A *short* task has no timer and cannot be cancelled. This is the cheap path.
//! - A *long* task has a deadline. At its deadline, when it is stopped, and in a hard shutdown it is *cancelled*: it
//!   sees that through its [`TaskContext`] and should return. If it has not returned after the grace period
//!   ([`PoolConfig::grace`]), its future is dropped. If it blocks its thread, its worker is abandoned and replaced.
//!
//! **Ended.** The [`Completion`] receives the [`Ending`]: `Finished` with the output, `Panicked`, `GaveUp` after the
//! grace period, or `NotStarted` if the task was stopped or handed back while it was queued. Then the place in the
//! queue is free, and [`Handle::wait`] returns.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use garenne_pool::{OnEnd, Pool, PoolConfig, Spec, Stop, Task, TaskContext};
//!
//! struct Double(u64);
//!
//! impl Task for Double {
//!     type Output = u64;
//!
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
//!
//! # Groups
//!
//! Tasks can belong to a group ([`Spec::group`]). [`Pool::group`] limits how many tasks of a group run at once
//! ([`Group::cap`]), pauses and resumes it, stops its tasks, or waits for all of them. A group that may start no
//! tasks does not delay others.
//!
//! # Tasks that take several workers
//!
//! A task with a [`Spec::width`] above 1 is divided into shards by [`Task::shard`]. It starts with the workers that
//! are free and is joined by others as they become free. It ends once, after its last shard: with the outputs joined
//! by [`Task::join`], or with the first failure, which also cancels the other shards.
//!
//! # Panics
//!
//! A panic ends the task with [`Ending::Panicked`] and affects no other task. The worker restarts after a pause
//! ([`Backoff`]) and the restart is counted. Panics in completions, observers and destructors are logged.
//!
//! # Shutdown
//!
//! [`Pool::begin_shutdown`] takes one of four modes ([`Stop`]), from *light* (finish everything) to *hard* (cancel
//! now, give up after the grace period). A shutdown can be made harder while it is in progress. [`Pool::stopped`]
//! waits for its end and reports how the tasks ended.
//!
//! # Observability
//!
//! [`Pool::snapshot`] returns the state of the pool, its workers, groups and running tasks; it can be serialized. An
//! [`Observer`] receives the time that each task waited and ran. The crate logs with [`tracing`].

mod atomic;
mod cancel_signal;
mod config;
mod context;
mod ending;
mod engine;
mod group;
mod handle;
mod id;
mod observer;
mod panic;
mod pool;
mod pool_types;
mod refusal;
mod run_all;
mod shutdown;
mod snapshot;
mod spawn;
mod spec;
mod state;
mod task;
mod timer;

pub use self::{
    config::{Backoff, ConfigError, PoolConfig, PoolOptions, Simulation},
    context::TaskContext,
    ending::{Cause, Ending, EndingKind, Outcome},
    group::Group,
    handle::{Batch, Handle, Status},
    id::{GroupName, TaskId},
    observer::Observer,
    pool::Pool,
    refusal::{Refusal, Refused},
    run_all::{Attempt, run_all},
    shutdown::{Phase, Report, Stop},
    snapshot::{GroupView, RunningTask, Snapshot, TaskState, Totals, Workers},
    spec::{Placement, Run, Spec},
    task::{Completion, OnEnd, Task},
};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
