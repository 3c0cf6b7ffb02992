//! A live view of one submitted task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::Notify;

use crate::{outcome::Outcome, task_id::TaskId};

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

/// Stops a task by its sequence number. Implemented by the pool; keeps its type parameters out of [`Handle`].
pub(crate) trait StopTask: Send + Sync {
    fn stop_task(self: Arc<Self>, seq: u64) -> bool;
}

/// What the pool and the handles of a task share.
#[derive(Default)]
pub(crate) struct HandleState {
    status: Mutex<Progress>,
    ended: Notify,
}

#[derive(Default)]
enum Progress {
    #[default]
    Queued,
    Running,
    Ended(Outcome),
}

impl HandleState {
    pub(crate) fn start(&self) {
        let mut status = self.lock();
        if matches!(*status, Progress::Queued) {
            *status = Progress::Running;
        }
    }

    pub(crate) fn end(&self, outcome: Outcome) {
        *self.lock() = Progress::Ended(outcome);
        self.ended.notify_waiters();
    }

    fn status(&self) -> Status {
        match &*self.lock() {
            Progress::Queued => Status::Queued,
            Progress::Running => Status::Running,
            Progress::Ended(outcome) => Status::Ended(outcome.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.state.status()
    }

    /// The outcome, if the task has ended in any other way than returning without having been cancelled.
    #[must_use]
    pub fn error(&self) -> Option<Outcome> {
        match self.status() {
            Status::Ended(Outcome::Finished { told: None }) | Status::Queued | Status::Running => None,
            Status::Ended(outcome) => Some(outcome),
        }
    }

    /// Waits until the task has ended and its completion has been called.
    pub async fn wait(&self) -> Outcome {
        loop {
            let ended = self.state.ended.notified();
            tokio::pin!(ended);
            // Register before the check: an end between the two then wakes this future.
            ended.as_mut().enable();
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

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).field("status", &self.status()).finish()
    }
}
