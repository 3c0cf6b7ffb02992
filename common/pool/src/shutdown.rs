//! The four ways to shut a pool down, and the report at the end.

use std::time::Duration;

use serde::Serialize;

/// How to shut the pool down. Each variant is harder than the one before it, and a shutdown in progress can
/// only become harder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Admits no more tasks; finishes queued and running ones. Tasks of a paused group are handed back, because
    /// the group may never be resumed.
    Light,
    /// Hands queued tasks back; finishes running ones.
    Soft,
    /// Like `Soft`; what still runs after `timeout` is treated as by `Hard`.
    SoftTimeout {
        /// How long running tasks may take, from now.
        timeout: Duration,
        /// The grace period of the hard phase.
        grace: Duration,
    },
    /// Hands queued tasks back and cancels long ones. Gives up what still runs after `grace`, including short
    /// tasks.
    Hard {
        /// How long running tasks may take to return, from now.
        grace: Duration,
    },
}

impl Stop {
    pub(crate) const fn phase(self) -> Phase {
        match self {
            Self::Light => Phase::Light,
            Self::Soft => Phase::Soft,
            Self::SoftTimeout { .. } => Phase::SoftTimeout,
            Self::Hard { .. } => Phase::Hard,
        }
    }
}

/// The phase of a pool. It only moves down this list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The pool admits tasks.
    #[default]
    Open,
    /// See [`Stop::Light`].
    Light,
    /// See [`Stop::Soft`].
    Soft,
    /// See [`Stop::SoftTimeout`].
    SoftTimeout,
    /// See [`Stop::Hard`].
    Hard,
    /// Every task has ended, and every worker has exited or was abandoned.
    Closed,
}

/// How the tasks ended that the pool held when its shutdown began, in tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Returned without having been cancelled.
    pub finished: u64,
    /// Never started.
    pub not_started: u64,
    /// Cancelled; returned within the grace period, or were dropped after it.
    pub interrupted: u64,
    /// Cancelled, and still running when the pool gave them up.
    pub abandoned: u64,
    /// Panicked.
    pub panicked: u64,
}
