//! Handlers: what a user of the library writes.
//!
//! A handler is an async function. It takes a [`TaskContext`] and a [`Payload`], and returns an
//! [output](IntoOutput) or a [`TaskError`]. The payload type determines which kind of task the handler runs.
//! [`TaskOptions`] determine how its tasks run: short or long, on the runtime or on threads, and when they are
//! retried.
//!
//! Handlers never ack a message. The worker settles the delivery by what the handler returns: an output is stored
//! by the sinks before the task is acked, and a [`TaskError`] says whether the task is retried, deferred or
//! dead-lettered. A panic counts as a transient error.
//!
//! A task may run more than once, for instance if the worker's connection is lost after it succeeded. Sinks and
//! follow-ups are idempotent; side effects of a handler should be so as well, by [`TaskContext::id`].

mod batch_records;
mod context;
mod error;
mod follow_up;
mod output;
mod progress;
mod retry;
mod team;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use garenne_protocol::task::{NewTask, TaskId};

pub use crate::payload::{ContentType, Payload, PayloadError};
pub use batch_records::BatchRecords;
pub use context::TaskContext;
pub(crate) use context::{Sharing, WorkerContext};
pub(crate) use error::ErrorAction;
pub use error::TaskError;
pub use follow_up::FollowUps;
pub(crate) use follow_up::Routes;
pub use output::{IntoOutput, Output, ReadingRow, RefusedPart};
pub(crate) use progress::ProgressBoard;
pub use retry::{ErrorClass, RetryPolicy};
pub(crate) use team::Team;

/// How the tasks of a kind run.
///
/// A task is *short* or *long*. A short task has no deadline and cannot be cancelled; use it for work that ends well
/// within the grace period of a shutdown. A long task has a deadline and a [token](TaskContext::token) that is
/// cancelled at the deadline, by an operator's stop and at shutdown.
///
/// ```
/// # use std::time::Duration;
/// # use garenne::TaskOptions;
/// let transcode = TaskOptions::long().deadline(Duration::from_secs(600)).cpu_bound();
/// ```
#[derive(Clone, Debug)]
pub struct TaskOptions {
    /// The time from the start of a long task until its token is cancelled. [`None`] for a short task.
    ///
    /// With the header `garenne-timeout-ms` a publisher can shorten it for a single task, and can give a deadline to
    /// a task of a short kind.
    pub deadline: Option<Duration>,
    /// Whether tasks keep a processor busy or block. They run on threads of their own then, so that they do not
    /// delay other handlers.
    pub cpu_bound: bool,
    /// When and how often failed tasks are retried.
    pub retry: RetryPolicy,
    /// When idle workers of the lane help with a task. [`None`] if each task runs on one worker.
    pub helpers: Option<Helpers>,
    /// The property by which the lane's limits per key count tasks. [`None`] if only the header `garenne-key` does.
    pub key: Option<KeyLimit>,
    /// What follows a dead letter. See [`TaskOptions::when_dead`].
    pub when_dead: Option<WhenDead>,
}

/// Makes the task that follows a dead letter, from its id and its payload.
#[derive(Clone)]
pub struct WhenDead(pub(crate) Arc<MakeTask>);

type MakeTask = dyn Fn(&TaskId, &[u8]) -> Option<NewTask> + Send + Sync;

impl fmt::Debug for WhenDead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WhenDead").finish_non_exhaustive()
    }
}

/// Returns the key of a payload, if it has one.
type KeyOf = dyn Fn(&[u8]) -> Option<String> + Send + Sync;

/// Limits the tasks of a kind by a key of their payload, such as the device. See [`TaskOptions::keyed_by`].
#[derive(Clone)]
pub struct KeyLimit {
    pub(crate) key: Arc<KeyOf>,
    pub(crate) half_of_lane: bool,
}

impl fmt::Debug for KeyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyLimit").field("half_of_lane", &self.half_of_lane).finish_non_exhaustive()
    }
}

/// Idle workers of a lane that help with a large task. See [`TaskContext::spread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Helpers {
    /// The size of the payload, in bytes, from which on workers help.
    pub from_bytes: usize,
    /// The largest number of helpers. There are never more than the lane has workers besides the task's own.
    pub max: u32,
}

impl TaskOptions {
    /// Options of a short task: no deadline, not cancellable, default retries.
    pub fn short() -> Self {
        Self {
            deadline: None,
            cpu_bound: false,
            retry: RetryPolicy::default(),
            helpers: None,
            key: None,
            when_dead: None,
        }
    }

    /// Options of a long task: cancellable, a deadline of 60 s, default retries.
    pub fn long() -> Self {
        Self { deadline: Some(Duration::from_secs(60)), ..Self::short() }
    }

    /// Sets the deadline. Makes the task a long one.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Runs tasks on threads of their own. For tasks that keep a processor busy or block.
    #[must_use]
    pub fn cpu_bound(self) -> Self {
        Self { cpu_bound: true, ..self }
    }

    /// Lets idle workers of the lane help with a task whose payload has `from_bytes` bytes or more: up to `max` of
    /// them run what the handler passes to [`TaskContext::spread`].
    ///
    /// A helper starts only while no other task waits in the lane, and leaves between two units when one does. The
    /// task never waits for a helper to start. Only long tasks that are no record of a batch have helpers.
    #[must_use]
    pub fn helpers(self, from_bytes: usize, max: u32) -> Self {
        Self { helpers: Some(Helpers { from_bytes, max }), ..self }
    }

    /// Derives the key of a task from its payload. If the setting `lanes.<name>.max_per_key` is set, at most so many
    /// tasks of one key run at once in a worker. The message's header `garenne-key` comes first.
    #[must_use]
    pub fn keyed_by(self, key: impl Fn(&[u8]) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { key: Some(KeyLimit { key: Arc::new(key), half_of_lane: false }), ..self }
    }

    /// As [`keyed_by`](Self::keyed_by), and if `max_per_key` is not set, tasks of one key take at most half of the
    /// lane's workers, and at least one.
    #[must_use]
    pub fn half_of_lane_per_key(self, key: impl Fn(&[u8]) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { key: Some(KeyLimit { key: Arc::new(key), half_of_lane: true }), ..self }
    }

    /// What to publish after a task of this kind has become a dead letter, from its id and its payload. Best effort: it is sent
    /// once, and nothing is sent for dead letters that the broker made itself, or if no lane takes the kind.
    #[must_use]
    pub fn when_dead(self, task: impl Fn(&TaskId, &[u8]) -> Option<NewTask> + Send + Sync + 'static) -> Self {
        Self { when_dead: Some(WhenDead(Arc::new(task))), ..self }
    }

    /// Sets the retry policy.
    #[must_use]
    pub fn retry(self, policy: RetryPolicy) -> Self {
        Self { retry: policy, ..self }
    }
}

/// A handler without its payload and output types, as stored in the registry.
pub(crate) type ErasedHandler =
    dyn Fn(TaskContext, ContentType, Bytes) -> BoxFuture<'static, Result<Output, TaskError>> + Send + Sync;

/// Makes a handler read its payload from a message's body and convert its output.
pub(crate) fn erase<F, P, R, O>(handler: F) -> Arc<ErasedHandler>
where
    F: Fn(TaskContext, P) -> R + Send + Sync + 'static,
    P: Payload,
    R: Future<Output = Result<O, TaskError>> + Send + 'static,
    O: IntoOutput,
{
    Arc::new(move |context, content_type, body| {
        let payload = P::read(content_type, &body);
        drop(body);
        let running = payload.map(|payload| handler(context, payload));
        Box::pin(async move { running?.await?.into_output() })
    })
}
