//! How a task can end.

use std::sync::Arc;

use serde::Serialize;

/// How an admitted task ended. Every admitted task ends exactly once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending<O> {
    /// The task returned.
    Finished {
        /// The value that it returned.
        output: O,
        /// The cause, if the task was cancelled before it returned.
        cancelled_by: Option<Cause>,
    },
    /// The task panicked. Its worker was restarted.
    Panicked {
        /// The panic message.
        message: String,
    },
    /// The task was cancelled and did not return within the grace period.
    GaveUp {
        /// Why it was cancelled.
        cause: Cause,
        /// True if the task blocked its thread, so that its worker was replaced. False if its future was
        /// dropped while it waited.
        stuck: bool,
    },
    /// The task never started.
    NotStarted {
        /// Why not.
        cause: Cause,
    },
}

impl<O> Ending<O> {
    /// Converts the output, if there is one.
    pub fn map<P>(self, change: impl FnOnce(O) -> P) -> Ending<P> {
        match self {
            Self::Finished { output, cancelled_by } => {
                Ending::Finished { output: change(output), cancelled_by }
            }
            Self::Panicked { message } => Ending::Panicked { message },
            Self::GaveUp { cause, stuck } => Ending::GaveUp { cause, stuck },
            Self::NotStarted { cause } => Ending::NotStarted { cause },
        }
    }

    /// The ending without the output.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Finished { cancelled_by, .. } => Outcome::Finished { cancelled_by: *cancelled_by },
            Self::Panicked { message } => Outcome::Panicked { message: Arc::from(message.as_str()) },
            Self::GaveUp { cause, stuck } => Outcome::GaveUp { cause: *cause, stuck: *stuck },
            Self::NotStarted { cause } => Outcome::NotStarted { cause: *cause },
        }
    }

    pub(crate) const fn kind(&self) -> EndingKind {
        match self {
            Self::Finished { cancelled_by: None, .. } => EndingKind::Finished,
            Self::Finished { cancelled_by: Some(_), .. } | Self::GaveUp { stuck: false, .. } => {
                EndingKind::Interrupted
            }
            Self::GaveUp { stuck: true, .. } => EndingKind::Abandoned,
            Self::Panicked { .. } => EndingKind::Panicked,
            Self::NotStarted { .. } => EndingKind::NotStarted,
        }
    }
}

/// An [`Ending`] without its output, as returned by a [`Handle`](crate::Handle).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// See [`Ending::Finished`].
    Finished {
        /// The cause, if the task was cancelled before it returned.
        cancelled_by: Option<Cause>,
    },
    /// See [`Ending::Panicked`].
    Panicked {
        /// The panic message.
        message: Arc<str>,
    },
    /// See [`Ending::GaveUp`].
    GaveUp {
        /// Why the task was cancelled.
        cause: Cause,
        /// Whether it blocked its thread.
        stuck: bool,
    },
    /// See [`Ending::NotStarted`].
    NotStarted {
        /// Why not.
        cause: Cause,
    },
}

/// Why a task was cancelled or never started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its deadline passed.
    Deadline,
    /// The task, its group or its worker was stopped.
    Stopped,
    /// The pool is shutting down.
    Shutdown,
}

/// The five kinds of endings that the pool counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndingKind {
    /// Returned without having been cancelled.
    Finished,
    /// Never started.
    NotStarted,
    /// Cancelled; returned within the grace period, or was dropped after it.
    Interrupted,
    /// Cancelled, and still running when the pool gave it up.
    Abandoned,
    /// Panicked.
    Panicked,
}
