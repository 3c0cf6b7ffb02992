//! Why a task was cancelled.

use serde::Serialize;

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
