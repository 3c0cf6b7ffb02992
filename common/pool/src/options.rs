//! Optional parts of a pool.

use std::sync::Arc;

use crate::{backoff::Backoff, observer::Observer};

/// Optional parts of a pool, for [`Pool::start_with`](crate::Pool::start_with).
#[derive(Clone, Default)]
pub struct PoolOptions {
    /// Called when tasks start and end.
    pub observer: Option<Arc<dyn Observer>>,
    /// How long a worker pauses after its task panicked.
    pub restart: Backoff,
}
