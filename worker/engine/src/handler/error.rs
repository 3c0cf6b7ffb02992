//! The error of a handler, which decides what becomes of the task.

use std::{error::Error, fmt::Display, sync::Arc, time::Duration};

use garenne_protocol::task::DeadReason;

use super::PayloadError;

/// Why a handler did not finish its task, and what is to become of the task.
///
/// | constructor | the task | attempt spent |
/// | --- | --- | --- |
/// | [`retry`](Self::retry), or `?` on any error | is retried after the kind's back-off | yes |
/// | [`retry_after`](Self::retry_after) | is retried after a given time | yes |
/// | [`snooze`](Self::snooze) | is deferred | no |
/// | [`reject`](Self::reject), [`invalid`](Self::invalid), [`unmapped`](Self::unmapped) | becomes a dead letter | |
/// | [`interrupted`](Self::interrupted) | depends on why it was cancelled | |
///
/// A task whose attempts are spent becomes a dead letter with reason `attempts-exhausted`.
///
/// Every type that implements [`std::error::Error`] converts into a retry, so `?` is right for transient errors.
/// [`RetryPolicy::classify`](super::RetryPolicy::classify) can decide otherwise by the error's type.
///
/// ```
/// # use std::time::Duration;
/// # use garenne::{TaskContext, TaskError};
/// async fn import(_: TaskContext, path: String) -> Result<usize, TaskError> {
///     if path.is_empty() {
///         return Err(TaskError::invalid("path is empty"));
///     }
///     let text = tokio::fs::read_to_string(&path).await?; // retried
///     Ok(text.len())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct TaskError {
    pub(crate) action: ErrorAction,
    pub(crate) message: String,
    /// The error that was converted with `?`, for the kind's classifier.
    pub(crate) source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The settlement of a task that returned an error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ErrorAction {
    /// Another attempt, after the kind's back-off or after a given wait.
    Retry { after: Option<Duration> },
    /// No further attempt.
    Dead(DeadReason),
    /// Another run after `wait`, without spending an attempt.
    Snooze { wait: Duration },
    /// Back to its queue, without spending an attempt.
    HandBack,
}

impl TaskError {
    /// A transient error. The task is retried after the back-off of its kind's [`RetryPolicy`](super::RetryPolicy).
    pub fn retry(message: impl Display) -> Self {
        Self::new(ErrorAction::Retry { after: None }, message)
    }

    /// A transient error of known duration. The task is retried not before `after`.
    ///
    /// A wait of more than 30 days counts as 30 days.
    pub fn retry_after(message: impl Display, after: Duration) -> Self {
        Self::new(ErrorAction::Retry { after: Some(after) }, message)
    }

    /// A permanent error. The task becomes a dead letter with reason `rejected`.
    pub fn reject(message: impl Display) -> Self {
        Self::new(ErrorAction::Dead(DeadReason::Rejected), message)
    }

    /// The payload is invalid. The task becomes a dead letter with reason `invalid-payload`.
    pub fn invalid(message: impl Display) -> Self {
        Self::new(ErrorAction::Dead(DeadReason::InvalidPayload), message)
    }

    /// No map makes anything of a foreign message. It becomes a dead letter with reason `unmapped`, which can be replayed
    /// after the map was corrected.
    pub fn unmapped(message: impl Display) -> Self {
        Self::new(ErrorAction::Dead(DeadReason::Unmapped), message)
    }

    /// The task cannot run now. It is deferred by `wait`, without spending an attempt.
    pub fn snooze(wait: Duration) -> Self {
        Self::new(ErrorAction::Snooze { wait }, "snoozed")
    }

    /// The handler stopped because its [token](super::TaskContext::token) was cancelled.
    ///
    /// The reason of the cancellation decides: after a shutdown the task is handed back without spending an
    /// attempt, after its deadline an attempt is spent, and after an operator's stop it becomes a dead letter with
    /// reason `stopped`.
    pub fn interrupted() -> Self {
        Self::new(ErrorAction::HandBack, "interrupted")
    }

    /// The task expired before it started.
    pub(crate) fn expired() -> Self {
        Self::new(ErrorAction::Dead(DeadReason::Expired), "expired before it started")
    }

    /// An operator stopped the task before it started.
    pub(crate) fn stopped() -> Self {
        Self::new(ErrorAction::Dead(DeadReason::Stopped), "stopped by an operator")
    }

    /// The error's text. It is logged, and written into the dead letter if the task becomes one.
    pub fn message(&self) -> &str {
        &self.message
    }

    fn new(action: ErrorAction, message: impl Display) -> Self {
        Self { action, message: message.to_string(), source: None }
    }
}

impl From<PayloadError> for TaskError {
    fn from(error: PayloadError) -> Self {
        match error {
            PayloadError::Malformed(message) => Self::new(ErrorAction::Dead(DeadReason::Malformed), message),
            PayloadError::Invalid(message) => Self::invalid(message),
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for TaskError {
    fn from(error: E) -> Self {
        Self {
            message: error.to_string(),
            action: ErrorAction::Retry { after: None },
            source: Some(Arc::new(error)),
        }
    }
}
