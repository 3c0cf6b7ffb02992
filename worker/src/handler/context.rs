//! What a handler knows of the task it runs.

use std::sync::Arc;

use garenne_common::{
    pool,
    task::{Envelope, Kind, TaskId},
};
use tokio_util::sync::CancellationToken;

/// Handed to every handler. Cheap to clone.
#[derive(Clone)]
pub struct TaskContext {
    envelope: Arc<Envelope>,
    worker: Arc<str>,
    pool: Arc<pool::TaskContext>,
}

impl TaskContext {
    pub(crate) fn new(envelope: Arc<Envelope>, worker: Arc<str>, pool: pool::TaskContext) -> Self {
        Self { envelope, worker, pool: Arc::new(pool) }
    }

    /// The task's id: stable over retries and redeliveries.
    pub fn id(&self) -> &TaskId {
        &self.envelope.id
    }

    /// The kind.
    pub fn kind(&self) -> &Kind {
        &self.envelope.kind
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.envelope.attempt + 1
    }

    /// The worker it runs on.
    pub fn worker(&self) -> &str {
        &self.worker
    }

    /// The group, if it belongs to one.
    pub fn group(&self) -> Option<&str> {
        self.envelope.group.as_deref()
    }

    /// Cancelled when a long task should stop: deadline, operator or shutdown. A short task's never is.
    pub fn token(&self) -> &CancellationToken {
        self.pool.token()
    }

    /// When the token will be cancelled for lack of time; a short task has no such moment.
    pub fn deadline(&self) -> Option<tokio::time::Instant> {
        self.pool.deadline()
    }
}
