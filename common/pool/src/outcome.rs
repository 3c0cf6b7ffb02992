//! How a task ended, without its output.

use std::sync::Arc;

use serde::Serialize;

use crate::cause::Cause;

/// An [`Ending`](crate::Ending) without its output, as returned by a [`Handle`](crate::Handle).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// See [`Ending::Finished`](crate::Ending::Finished).
    Finished {
        /// The cause, if the task was cancelled before it returned.
        told: Option<Cause>,
    },
    /// See [`Ending::Panicked`](crate::Ending::Panicked).
    Panicked {
        /// The panic message.
        message: Arc<str>,
    },
    /// See [`Ending::GaveUp`](crate::Ending::GaveUp).
    GaveUp {
        /// Why the task was cancelled.
        cause: Cause,
        /// Whether it blocked its thread.
        stuck: bool,
    },
    /// See [`Ending::NotStarted`](crate::Ending::NotStarted).
    NotStarted {
        /// Why not.
        cause: Cause,
    },
}
