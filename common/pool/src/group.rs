//! Controls a group of tasks.

use std::sync::Arc;

use crate::{
    cause::Cause,
    completion::Completion,
    engine::{core::PoolCore, finish::stop_matching, orders::hand_back_closed_groups},
    group_name::GroupName,
    state::group_state::GroupState,
    task::Task,
};

/// Controls one group of a pool.
///
/// A group exists as soon as it is named. Its pause and its cap also apply to tasks that are submitted later.
pub struct Group<'a, T: Task, C: Completion<T::Output>> {
    pub(crate) core: &'a Arc<PoolCore<T, C>>,
    pub(crate) name: GroupName,
}

impl<T: Task, C: Completion<T::Output>> Group<'_, T, C> {
    /// Limits how many tasks and shards of the group run at once; `None` removes the limit.
    ///
    /// Running tasks continue. A cap of 0 acts like [`pause`](Self::pause).
    pub fn cap(&self, cap: Option<usize>) {
        self.configure(|group| group.cap = cap);
    }

    /// Starts no more tasks of the group until [`resume`](Self::resume). Running tasks continue.
    ///
    /// Paused tasks still take their place in the queue. During a shutdown they are handed back at once, because
    /// the group may never be resumed.
    pub fn pause(&self) {
        self.configure(|group| group.paused = true);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.configure(|group| group.paused = false);
    }

    /// Removes the queued tasks of the group and cancels its running long tasks. Returns how many tasks and shards
    /// that were.
    pub fn stop(&self) -> usize {
        stop_matching(self.core, Cause::Stopped, |_, _, group| group == Some(&self.name))
    }

    /// Waits until every task of the group has ended and its completion has been called.
    pub async fn wait(&self) {
        loop {
            let drained = match self.core.lock().queue.group(&self.name) {
                Some(group) if group.pending > 0 => Arc::clone(&group.drained),
                _ => return,
            };
            let drained = drained.notified();
            tokio::pin!(drained);
            // Register before the check: an end between the two then wakes this future.
            drained.as_mut().enable();
            let pending = self.core.lock().queue.group(&self.name).is_some_and(|group| group.pending > 0);
            if !pending {
                return;
            }
            drained.await;
        }
    }

    fn configure(&self, change: impl FnOnce(&mut GroupState<T, C>)) {
        let mut state = self.core.lock();
        state.queue.configure(&self.name, change);
        self.core.unlock_and_scale(state);
        hand_back_closed_groups(self.core);
    }
}
