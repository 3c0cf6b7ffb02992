//! Tasks that are ordered about together.

use super::{Cause, Completion, GroupName, Handle, Outcome, Pool, Task, TaskId};

/// Orders to one group of a pool. A group exists as soon as it is named; a pause or a cap holds for
/// tasks submitted later too.
pub struct Group<'a, T: Task, C: Completion<T::Output>> {
    pub(super) pool: &'a Pool<T, C>,
    pub(super) name: GroupName,
}

impl<T: Task, C: Completion<T::Output>> Group<'_, T, C> {
    /// Bounds how many of the group run at once; `None` removes the bound. Running ones go on. A cap
    /// of 0 is a [`pause`](Self::pause).
    pub fn cap(&self, cap: Option<usize>) {
        self.change(|lane| lane.rule(&self.name, |group| group.cap = cap));
    }

    /// Starts no more of the group until [`resume`](Self::resume). Running ones go on. During a
    /// shutdown what waits is handed back at once: nobody might ever resume it.
    pub fn pause(&self) {
        self.change(|lane| lane.rule(&self.name, |group| group.paused = true));
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.change(|lane| lane.rule(&self.name, |group| group.paused = false));
    }

    /// Ends what waits and tells the long ones that run; answers how many that were.
    pub fn stop(&self) -> usize {
        self.pool.shared().stop_where(Cause::Stopped, |_, _, group| group == Some(&self.name))
    }

    /// Waits until no task of the group waits or runs; their completions have been called then.
    pub async fn wait(&self) {
        loop {
            let drained = {
                let board = self.pool.shared().lock();
                match board.lane.group(&self.name) {
                    Some(group) if group.pending > 0 => std::sync::Arc::clone(&group.drained),
                    _ => return,
                }
            };
            let drained = drained.notified();
            tokio::pin!(drained);
            // Registered before the check, so that an end in between is not missed.
            drained.as_mut().enable();
            let pending =
                self.pool.shared().lock().lane.group(&self.name).is_some_and(|group| group.pending > 0);
            if !pending {
                return;
            }
            drained.await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut super::lane::Lane<T, C>)) {
        change(&mut self.pool.shared().lock().lane);
        self.pool.shared().restaff();
        self.pool.shared().hand_back_shut();
    }
}

/// Tasks that were submitted together.
#[derive(Debug)]
pub struct Batch {
    pub(super) handles: Vec<Handle>,
}

impl Batch {
    /// A handle for each task, in the order of submission.
    #[must_use]
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Waits for all of them; outcomes in the order of submission.
    pub async fn all(&self) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(self.handles.len());
        for handle in &self.handles {
            outcomes.push(handle.wait().await);
        }
        outcomes
    }

    /// Waits until one fails, or all have finished.
    ///
    /// # Errors
    /// The first that did not finish of its own accord, by time of failure.
    pub async fn first_error(&self) -> Result<(), (TaskId, Outcome)> {
        use futures_util::{StreamExt, stream::FuturesUnordered};
        let mut waits: FuturesUnordered<_> =
            self.handles.iter().map(|handle| async move { (handle, handle.wait().await) }).collect();
        while let Some((handle, outcome)) = waits.next().await {
            if outcome != (Outcome::Finished { told: None }) {
                return Err((handle.id().clone(), outcome));
            }
        }
        Ok(())
    }

    /// Stops each of them, as [`Handle::stop`] does; answers how many that reached.
    pub fn stop(&self) -> usize {
        self.handles.iter().filter(|handle| handle.stop()).count()
    }
}
