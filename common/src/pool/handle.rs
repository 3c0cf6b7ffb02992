//! A live view of one submitted task.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::Notify;

use super::{Outcome, TaskId};

/// Where a task is. It moves down this list and never back; only a task that never ran skips
/// `Running`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waits for a worker.
    Queued,
    /// Runs.
    Running,
    /// Is over.
    Ended(Outcome),
}

/// Live view of a submitted task. Dropping it does not stop the task.
#[derive(Clone)]
pub struct Handle {
    pub(super) id: TaskId,
    pub(super) seq: u64,
    pub(super) state: Arc<HandleState>,
    pub(super) control: Arc<dyn Control>,
}

/// What a handle can order; keeps it free of the pool's type parameters.
pub(super) trait Control: Send + Sync {
    fn stop_seq(self: Arc<Self>, seq: u64) -> bool;
}

#[derive(Default)]
pub(super) struct HandleState {
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
    pub(super) fn start(&self) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*status, Progress::Queued) {
            *status = Progress::Running;
        }
    }

    pub(super) fn end(&self, outcome: Outcome) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Progress::Ended(outcome);
        self.ended.notify_waiters();
    }

    fn read(&self) -> Status {
        match &*self.status.lock().unwrap_or_else(PoisonError::into_inner) {
            Progress::Queued => Status::Queued,
            Progress::Running => Status::Running,
            Progress::Ended(outcome) => Status::Ended(outcome.clone()),
        }
    }
}

impl Handle {
    /// The task's id.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// Where the task is now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.state.read()
    }

    /// How the task failed, if it did: any outcome but having finished without being told to stop.
    #[must_use]
    pub fn error(&self) -> Option<Outcome> {
        match self.status() {
            Status::Ended(Outcome::Finished { told: None }) | Status::Queued | Status::Running => None,
            Status::Ended(outcome) => Some(outcome),
        }
    }

    /// Waits for the end. The completion has been called when this returns.
    pub async fn wait(&self) -> Outcome {
        loop {
            let ended = self.state.ended.notified();
            tokio::pin!(ended);
            // Registered before the check, so that an end in between is not missed.
            ended.as_mut().enable();
            if let Status::Ended(outcome) = self.status() {
                return outcome;
            }
            ended.await;
        }
    }

    /// Takes the task out of the queue, or tells it to stop. False when it is over, or short and
    /// already running.
    pub fn stop(&self) -> bool {
        Arc::clone(&self.control).stop_seq(self.seq)
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).field("status", &self.status()).finish()
    }
}
