//! When a cancelled task is given up.

use tokio::time::Instant;

use crate::cause::Cause;

/// When a task that was told to stop is given up.
#[derive(Clone, Copy)]
pub(crate) struct StopLimit {
    pub(crate) cause: Cause,
    pub(crate) give_up_at: Instant,
    /// The worker was asked to drop the future.
    pub(crate) drop_requested: bool,
}
