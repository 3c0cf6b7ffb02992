//! Tasks that were submitted together.

use futures_util::{StreamExt, stream::FuturesUnordered};

use crate::{handle::Handle, outcome::Outcome, task_id::TaskId};

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
        let mut outcomes = Vec::with_capacity(self.handles.len());
        for handle in &self.handles {
            outcomes.push(handle.wait().await);
        }
        outcomes
    }

    /// Waits until a task fails or all have finished.
    ///
    /// # Errors
    /// The first task, by time, that ended in any other way than returning without having been cancelled.
    pub async fn first_error(&self) -> Result<(), (TaskId, Outcome)> {
        let mut waits: FuturesUnordered<_> =
            self.handles.iter().map(|handle| async move { (handle, handle.wait().await) }).collect();
        while let Some((handle, outcome)) = waits.next().await {
            if outcome != (Outcome::Finished { told: None }) {
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
