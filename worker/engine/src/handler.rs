//! What a handler is: an async function from a context and a payload to an output or a [`TaskError`].

mod batch_records;
mod context;
mod error;
mod follow_up;
mod output;
mod progress;
mod retry;

use std::{future::Future, marker::PhantomData, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;

pub use batch_records::BatchRecords;
pub use context::TaskContext;
pub(crate) use context::WorkerContext;
pub(crate) use error::ErrorAction;
pub use error::TaskError;
pub use follow_up::FollowUps;
pub(crate) use follow_up::Routes;
pub use garenne_protocol::task::ContentType;
pub use output::{IntoOutput, Output, ReadingRow};
pub(crate) use progress::ProgressBoard;
pub use retry::{Class, RetryPolicy};

/// A payload type. It carries its kind, so that a handler cannot be registered for the wrong one.
pub trait Payload: Sized + Send + 'static {
    /// The kind of task this is the payload of.
    const KIND: &'static str;

    /// Reads the body.
    ///
    /// # Errors
    /// [`Unreadable`] says whether the body is no JSON at all or not what this kind takes.
    fn read(content_type: ContentType, body: &[u8]) -> Result<Self, Unreadable>;
}

/// Why a body is not the payload of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// No JSON: dead with `malformed`.
    Malformed(String),
    /// JSON, but not this kind's: dead with `invalid-payload`.
    Invalid(String),
}

impl Unreadable {
    /// Reads JSON into a type, telling broken JSON from the wrong JSON.
    ///
    /// # Errors
    /// [`Unreadable`] with serde's own words: field, expectation, line and column.
    pub fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Self> {
        serde_json::from_slice(body).map_err(|error| {
            if body.is_empty() {
                Self::Malformed("the body is empty".into())
            } else if error.is_data() {
                Self::Invalid(error.to_string())
            } else {
                Self::Malformed(error.to_string())
            }
        })
    }
}

/// Makes a [`Payload`] of a type that reads itself from JSON.
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Resize { width: u32 }
/// garenne_worker::json_payload!(Resize, "image.resize");
/// ```
#[macro_export]
macro_rules! json_payload {
    ($type:ty, $kind:expr) => {
        impl $crate::handler::Payload for $type {
            const KIND: &'static str = $kind;

            fn read(
                _: $crate::handler::ContentType,
                body: &[u8],
            ) -> Result<Self, $crate::handler::Unreadable> {
                $crate::handler::Unreadable::json(body)
            }
        }
    };
}
/// How tasks of a kind run.
#[derive(Clone, Debug)]
pub struct TaskOptions {
    /// The longest a task may run; nothing for a short task, which has no timer and cannot be
    /// interrupted.
    pub deadline: Option<Duration>,
    /// Whether it keeps a processor busy and so runs on threads made for that.
    pub cpu_bound: bool,
    /// When a failed task is tried again.
    pub retry: RetryPolicy,
}

impl TaskOptions {
    /// A short task: no timer, uninterruptible.
    pub fn short() -> Self {
        Self { deadline: None, cpu_bound: false, retry: RetryPolicy::default() }
    }

    /// A long task: cancellable, with a deadline of 60 s until another is set.
    pub fn long() -> Self {
        Self { deadline: Some(Duration::from_secs(60)), ..Self::short() }
    }

    /// Sets the deadline, and so makes the task a long one.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Runs on threads of its own.
    #[must_use]
    pub fn cpu_bound(mut self) -> Self {
        self.cpu_bound = true;
        self
    }

    /// Retries by this policy.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }
}

/// A handler with its types erased, as the registry holds it.
pub(crate) trait ErasedHandler: Send + Sync {
    fn call(
        &self,
        context: TaskContext,
        content_type: ContentType,
        body: Bytes,
    ) -> BoxFuture<'static, Result<Output, TaskError>>;
}

/// Erases `F`; see [`ErasedHandler`].
pub(crate) struct TypedHandler<F, P>(F, PhantomData<fn(P)>);

impl<F, P> TypedHandler<F, P> {
    pub(crate) fn new(handler: F) -> Self {
        Self(handler, PhantomData)
    }
}

impl<F, P, R, O> ErasedHandler for TypedHandler<F, P>
where
    F: Fn(TaskContext, P) -> R + Send + Sync,
    P: Payload,
    R: Future<Output = Result<O, TaskError>> + Send + 'static,
    O: IntoOutput,
{
    fn call(
        &self,
        context: TaskContext,
        content_type: ContentType,
        body: Bytes,
    ) -> BoxFuture<'static, Result<Output, TaskError>> {
        let payload = match P::read(content_type, &body) {
            Ok(payload) => payload,
            Err(unreadable) => return Box::pin(std::future::ready(Err(unreadable.into()))),
        };
        drop(body);
        let running = (self.0)(context, payload);
        Box::pin(async move { running.await?.into_output() })
    }
}
