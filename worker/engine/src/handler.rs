//! Handlers: what a user of the library writes.
//!
//! A [handler](Handler) is an async function. Its last argument is a [`Payload`], whose type determines which kind of task the
//! handler runs. Before it come a [`TaskContext`], shared [`Data`] or nothing. It returns an [output](IntoOutput) or a
//! [`TaskError`].
//!
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
mod checkpoint;
mod checkpoints;
mod context;
mod data;
mod error;
mod follow_up;
mod from_task;
mod function;
mod headers;
mod output;
mod progress;
mod retry;
mod task;
mod team;

use std::{fmt, sync::Arc, time::Duration};

use garenne_protocol::task::{NewTask, TaskId};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

pub use crate::payload::{ContentType, Payload, PayloadError};
pub use batch_records::BatchRecords;
pub(crate) use checkpoints::Checkpoints;
pub use context::TaskContext;
pub(crate) use context::{Sharing, WorkerContext};
pub use data::{Data, MissingData, WorkerData};
pub(crate) use error::ErrorAction;
pub use error::{Result, TaskError};
pub(crate) use follow_up::Routes;
pub use follow_up::{FollowUp, FollowUps};
pub use from_task::FromTask;
pub use function::{Arguments, AsyncFunction, Handler, HandlerError, HandlerResult};
pub use garenne_protocol::task::HeaderValue;
pub use output::{IntoOutput, Output, RefusedPart};
pub(crate) use progress::ProgressBoard;
pub use retry::{ErrorClass, RetryPolicy};
pub use task::Task;
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
#[non_exhaustive]
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
    /// Whether the handler can run tasks now. [`None`] if it always can. See [`TaskOptions::ready_when`].
    pub ready: Option<watch::Receiver<Result<(), String>>>,
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
    pub(crate) most: MostPerKey,
}

/// How many tasks of one key run at once in a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MostPerKey {
    /// As many as the lane's setting says.
    OfLane,
    /// The same, and half of the lane's workers without the setting.
    HalfOfLane,
    /// As many, by a key that only the payload determines.
    Tasks(u16),
}

impl fmt::Debug for KeyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyLimit").field("most", &self.most).finish_non_exhaustive()
    }
}

/// Idle workers of a lane that help with a large task. See [`TaskContext::spread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
            ready: None,
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
        Self { key: Some(KeyLimit { key: Arc::new(key), most: MostPerKey::OfLane }), ..self }
    }

    /// As [`keyed_by`](Self::keyed_by), and if `max_per_key` is not set, tasks of one key take at most half of the
    /// lane's workers, and at least one.
    #[must_use]
    pub fn half_of_lane_per_key(self, key: impl Fn(&[u8]) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { key: Some(KeyLimit { key: Arc::new(key), most: MostPerKey::HalfOfLane }), ..self }
    }

    /// Limits how many tasks of one key run at once in a worker, at least 1. The key is that of the payload, whatever the
    /// header `garenne-key` is. `P` may be the type of the payload, or one with the fields of the key only. A task whose
    /// payload is no `P` is not limited.
    ///
    /// Each worker counts for itself: a fleet of five workers runs up to five times as many tasks of a key. Tasks over the
    /// limit wait in the worker and then in a retry queue, and spend no attempt. If the lane's setting `max_per_key` is
    /// lower, it applies.
    ///
    /// ```
    /// # use garenne::TaskOptions;
    /// #[derive(serde::Deserialize)]
    /// struct Email {
    ///     to: String,
    /// }
    ///
    /// impl Email {
    ///     fn domain(&self) -> String {
    ///         self.to.rsplit('@').next().unwrap_or_default().to_lowercase()
    ///     }
    /// }
    ///
    /// let options = TaskOptions::short().limit_per_key(5, |email: &Email| email.domain());
    /// ```
    #[must_use]
    pub fn limit_per_key<P, K>(self, most: u16, key: impl Fn(&P) -> K + Send + Sync + 'static) -> Self
    where
        P: DeserializeOwned + 'static,
        K: ToString,
    {
        let of_body = move |body: &[u8]| Some(key(&serde_json::from_slice(body).ok()?).to_string());
        Self { key: Some(KeyLimit { key: Arc::new(of_body), most: MostPerKey::Tasks(most) }), ..self }
    }

    /// What to publish after a task of this kind has become a dead letter, from its id and its payload. Best effort: it is sent
    /// once, and nothing is sent for dead letters that the broker made itself, or if no lane takes the kind.
    #[must_use]
    pub fn when_dead(self, task: impl Fn(&TaskId, &[u8]) -> Option<NewTask> + Send + Sync + 'static) -> Self {
        Self { when_dead: Some(WhenDead(Arc::new(task))), ..self }
    }

    /// Runs tasks only while `ready` is no error, for a handler that depends on another program or service. The error says
    /// what is missing, or nothing while the handler only starts. `/readyz` and heartbeats show it.
    ///
    /// While it is one, a lane all of whose kinds are not ready is not consumed, and its waiting tasks are handed back. In a
    /// lane with other kinds, tasks of this kind are deferred. Neither spends an attempt.
    #[must_use]
    pub fn ready_when(self, ready: watch::Receiver<Result<(), String>>) -> Self {
        Self { ready: Some(ready), ..self }
    }

    /// Whether the handler can run tasks now.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.as_ref().is_none_or(|ready| ready.borrow().is_ok())
    }

    /// Sets the retry policy.
    #[must_use]
    pub fn retry(self, policy: RetryPolicy) -> Self {
        Self { retry: policy, ..self }
    }
}
