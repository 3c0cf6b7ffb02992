//! How a task can end, and who is told.

use std::sync::Arc;

use serde::Serialize;

use super::TaskId;

/// Why a task was told to stop, or was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its deadline passed.
    Deadline,
    /// Somebody stopped it, its group or its worker.
    Stopped,
    /// The pool is shutting down.
    Shutdown,
}

/// The one end of an admitted task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending<O> {
    /// It returned.
    Finished {
        /// What it yielded.
        output: O,
        /// Set when it had been told to stop before it returned.
        told: Option<Cause>,
    },
    /// It panicked; the worker was restarted.
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// It was told to stop and did not return within the grace.
    GaveUp {
        /// Why it was told.
        cause: Cause,
        /// True when the task never gave the processor back and its worker was written off; false
        /// when its future could be dropped.
        stuck: bool,
    },
    /// It never ran.
    NotStarted {
        /// Why not.
        cause: Cause,
    },
}

impl<O> Ending<O> {
    /// The same with another output.
    pub fn map<P>(self, change: impl FnOnce(O) -> P) -> Ending<P> {
        match self {
            Self::Finished { output, told } => Ending::Finished { output: change(output), told },
            Self::Panicked { message } => Ending::Panicked { message },
            Self::GaveUp { cause, stuck } => Ending::GaveUp { cause, stuck },
            Self::NotStarted { cause } => Ending::NotStarted { cause },
        }
    }

    /// The same without the output.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Finished { told, .. } => Outcome::Finished { told: *told },
            Self::Panicked { message } => Outcome::Panicked { message: Arc::from(message.as_str()) },
            Self::GaveUp { cause, stuck } => Outcome::GaveUp { cause: *cause, stuck: *stuck },
            Self::NotStarted { cause } => Outcome::NotStarted { cause: *cause },
        }
    }

    pub(super) const fn kind(&self) -> EndingKind {
        match self {
            Self::Finished { told: None, .. } => EndingKind::Finished,
            Self::Finished { told: Some(_), .. } | Self::GaveUp { stuck: false, .. } => {
                EndingKind::Interrupted
            }
            Self::GaveUp { stuck: true, .. } => EndingKind::Abandoned,
            Self::Panicked { .. } => EndingKind::Panicked,
            Self::NotStarted { .. } => EndingKind::NotStarted,
        }
    }
}

/// An [`Ending`] without its output: what a [`Handle`](super::Handle) answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// See [`Ending::Finished`].
    Finished {
        /// Set when it had been told to stop before it returned.
        told: Option<Cause>,
    },
    /// See [`Ending::Panicked`].
    Panicked {
        /// The panic's message.
        message: Arc<str>,
    },
    /// See [`Ending::GaveUp`].
    GaveUp {
        /// Why it was told.
        cause: Cause,
        /// Whether it never gave the processor back.
        stuck: bool,
    },
    /// See [`Ending::NotStarted`].
    NotStarted {
        /// Why not.
        cause: Cause,
    },
}

/// The five ways in which endings are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndingKind {
    /// Returned, and had not been told to stop.
    Finished,
    /// Never ran.
    NotStarted,
    /// Told to stop; returned within the grace or was dropped after it.
    Interrupted,
    /// Told to stop, and still running when it was given up.
    Abandoned,
    /// Panicked.
    Panicked,
}

/// Learns how a task ended. Whatever a task was submitted for (a delivery to settle, a connection to
/// close) belongs in here.
pub trait Completion<O>: Send + 'static {
    /// Called exactly once for each admitted task, on whichever thread ended it; must not block.
    fn complete(self, ending: Ending<O>);

    /// The trace it belongs to, for logs.
    fn trace_id(&self) -> Option<&str> {
        None
    }

    /// Called before [`complete`](Self::complete) when the task was started and could not be
    /// completed (it panicked or was given up), so that half-done effects can be undone.
    fn compensate(&mut self, id: &TaskId, ending: &Ending<O>) {
        let _ = (id, ending);
    }
}

/// For tasks whose end nobody waits for.
impl<O> Completion<O> for () {
    fn complete(self, _ending: Ending<O>) {}
}

/// Any function of the ending.
pub struct OnEnd<F>(
    /// The function.
    pub F,
);

impl<O, F: FnOnce(Ending<O>) + Send + 'static> Completion<O> for OnEnd<F> {
    fn complete(self, ending: Ending<O>) {
        (self.0)(ending);
    }
}
