//! Live views of submitted tasks.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt},
};
use serde::Serialize;
use tokio::sync::Notify;

use crate::{ending::Outcome, id::TaskId, panic::lock};

/// The status of a task. It only moves down this list; a task that never ran skips `Running`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The task waits for a worker.
    Queued,
    /// The task runs.
    Running,
    /// The task has ended.
    Ended(Outcome),
}

/// A live view of a submitted task. Dropping it does not stop the task.
#[derive(Clone)]
pub struct Handle {
    pub(crate) id: TaskId,
    pub(crate) seq: u64,
    pub(crate) state: Arc<HandleState>,
    pub(crate) stopper: Arc<dyn StopTask>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).field("status", &self.status()).finish()
    }
}

/// Stops a task by its sequence number. Implemented by the pool; keeps its type parameters out of [`Handle`].
pub(crate) trait StopTask: Send + Sync {
    fn stop_task(self: Arc<Self>, seq: u64) -> bool;
}

/// The state that the pool and the handles of a task share.
pub(crate) struct HandleState {
    status: Mutex<Status>,
    ended: Notify,
}

impl HandleState {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { status: Mutex::new(Status::Queued), ended: Notify::new() })
    }

    pub(crate) fn start(&self) {
        let mut status = lock(&self.status);
        if *status == Status::Queued {
            *status = Status::Running;
        }
    }

    pub(crate) fn end(&self, outcome: Outcome) {
        *lock(&self.status) = Status::Ended(outcome);
        self.ended.notify_waiters();
    }
}

impl Handle {
    /// The id of the task.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// The current status of the task.
    #[must_use]
    pub fn status(&self) -> Status {
        lock(&self.state.status).clone()
    }

    /// The outcome, if the task has ended in any other way than returning without having been cancelled.
    #[must_use]
    pub fn error(&self) -> Option<Outcome> {
        match self.status() {
            Status::Ended(Outcome::Finished { cancelled_by: None }) | Status::Queued | Status::Running => {
                None
            }
            Status::Ended(outcome) => Some(outcome),
        }
    }

    /// Waits until the task has ended and its completion has been called.
    pub async fn wait(&self) -> Outcome {
        loop {
            // Created before the check: `notify_waiters` completes every future that exists, even if it was not polled.
            let ended = self.state.ended.notified();
            if let Status::Ended(outcome) = self.status() {
                return outcome;
            }
            ended.await;
        }
    }

    /// Removes the task from the queue or, if it is a running long task, cancels it.
    ///
    /// Returns false if the task has ended, was cancelled before, or is a short task that already runs.
    pub fn stop(&self) -> bool {
        Arc::clone(&self.stopper).stop_task(self.seq)
    }
}

/// Tasks that were submitted together.
#[derive(Debug)]
pub struct Batch {
    pub(crate) handles: Vec<Handle>,
}

impl Batch {
    /// The handles of the tasks, in the order of submission.
    #[must_use]
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Waits for all tasks. Returns their outcomes in the order of submission.
    pub async fn all(&self) -> Vec<Outcome> {
        join_all(self.handles.iter().map(Handle::wait)).await
    }

    /// Waits until a task fails or all have finished.
    ///
    /// # Errors
    /// The first task, by time, that ended in any other way than returning without having been cancelled.
    pub async fn first_error(&self) -> Result<(), (TaskId, Outcome)> {
        let mut waits: FuturesUnordered<_> =
            self.handles.iter().map(|handle| async move { (handle, handle.wait().await) }).collect();
        while let Some((handle, outcome)) = waits.next().await {
            if outcome != (Outcome::Finished { cancelled_by: None }) {
                return Err((handle.id().clone(), outcome));
            }
        }
        Ok(())
    }

    /// Stops each task, as [`Handle::stop`] does. Returns how many were stopped by this call.
    pub fn stop(&self) -> usize {
        self.handles.iter().filter(|handle| handle.stop()).count()
    }
}
