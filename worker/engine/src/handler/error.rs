//! How a handler says what should become of a task it did not finish.

use std::{error::Error, sync::Arc, time::Duration};

use garenne_protocol::task::DeadReason;

use super::Unreadable;

/// Names the settlement. Any error converts into one that asks for a retry, so `?` does what a
/// passing fault needs.
#[derive(Clone, Debug)]
pub struct TaskError {
    pub(crate) wish: ErrorAction,
    pub(crate) message: String,
    /// What a handler passed on with `?`, for the kind's classifier.
    pub(crate) source: Option<Arc<dyn Error + Send + Sync>>,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ErrorAction {
    /// Another attempt, by the kind's back-off or after a given wait.
    Retry { after: Option<Duration> },
    /// No further attempt.
    Dead(DeadReason),
    /// Later, without spending an attempt.
    Snooze { wait: Duration },
    /// Back to the broker at once, without spending an attempt.
    HandBack,
}

impl TaskError {
    /// A passing fault: try again by the kind's back-off.
    pub fn retry(message: impl std::fmt::Display) -> Self {
        Self::new(ErrorAction::Retry { after: None }, message)
    }

    /// A passing fault of known length: try again, not before `after`.
    pub fn retry_after(message: impl std::fmt::Display, after: Duration) -> Self {
        Self::new(ErrorAction::Retry { after: Some(after) }, message)
    }

    /// It will never work: a dead letter with reason `rejected`.
    pub fn reject(message: impl std::fmt::Display) -> Self {
        Self::new(ErrorAction::Dead(DeadReason::Rejected), message)
    }

    /// The payload makes no sense: a dead letter with reason `invalid-payload`.
    pub fn invalid(message: impl std::fmt::Display) -> Self {
        Self::new(ErrorAction::Dead(DeadReason::InvalidPayload), message)
    }

    /// Not now: put off for `wait`, no attempt spent.
    pub fn snooze(wait: Duration) -> Self {
        Self::new(ErrorAction::Snooze { wait }, "snoozed")
    }

    /// Told to stop, and stopped: what becomes of the task follows from who told it. Shutdown hands
    /// it back without spending an attempt; a deadline spends one; an operator's stop is final.
    pub fn interrupted() -> Self {
        Self::new(ErrorAction::HandBack, "interrupted")
    }

    /// Its time was up before it started.
    pub(crate) fn expired() -> Self {
        Self::new(ErrorAction::Dead(DeadReason::Expired), "expired before it started")
    }

    /// An operator stopped it before it started.
    pub(crate) fn stopped() -> Self {
        Self::new(ErrorAction::Dead(DeadReason::Stopped), "stopped by an operator")
    }

    /// The error's text.
    pub fn message(&self) -> &str {
        &self.message
    }

    fn caused_by(self, error: impl Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Arc::new(error)), ..self }
    }

    fn new(wish: ErrorAction, message: impl std::fmt::Display) -> Self {
        Self { wish, message: message.to_string(), source: None }
    }
}

impl From<Unreadable> for TaskError {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Malformed(message) => Self::new(ErrorAction::Dead(DeadReason::Malformed), message),
            Unreadable::Invalid(message) => Self::invalid(message),
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for TaskError {
    fn from(error: E) -> Self {
        Self::retry(&error).caused_by(error)
    }
}
