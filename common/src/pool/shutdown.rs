//! The four ways to shut a pool down, and what is reported at the end.

use std::time::Duration;

use serde::Serialize;

/// How the pool shuts down. Each variant is harder than the one before it; a shutdown under way can
/// only become harder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Nothing new is admitted; what waits and what runs is finished. Tasks of a paused group are
    /// handed back, since nobody might ever resume it.
    Light,
    /// What runs is finished; what waits is handed back.
    Soft,
    /// As `Soft`, and what still runs after `timeout` is treated as `Hard`.
    SoftTimeout {
        /// From the moment of this order.
        timeout: Duration,
        /// The grace of the hard phase.
        grace: Duration,
    },
    /// What waits is handed back, long tasks are told to stop, and what has not returned after
    /// `grace` is given up, short tasks too.
    Hard {
        /// From the moment of this order.
        grace: Duration,
    },
}

impl Stop {
    pub(super) const fn phase(self) -> Phase {
        match self {
            Self::Light => Phase::Light,
            Self::Soft => Phase::Soft,
            Self::SoftTimeout { .. } => Phase::SoftTimeout,
            Self::Hard { .. } => Phase::Hard,
        }
    }
}

/// Where a pool is in its life; it only ever moves down this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Admits tasks.
    Open,
    /// See [`Stop::Light`].
    Light,
    /// See [`Stop::Soft`].
    Soft,
    /// See [`Stop::SoftTimeout`].
    SoftTimeout,
    /// See [`Stop::Hard`].
    Hard,
    /// Every task has ended and every worker has left or was written off.
    Closed,
}

/// How the tasks ended that were in the pool when its shutdown began, in tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Returned without having been told to stop.
    pub finished: u64,
    /// Never started.
    pub not_started: u64,
    /// Told to stop; returned within the grace, or dropped after it.
    pub interrupted: u64,
    /// Still running when they were given up.
    pub abandoned: u64,
    /// Panicked.
    pub panicked: u64,
}
