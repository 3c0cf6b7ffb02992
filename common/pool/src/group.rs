//! Controls a group of tasks.

use std::sync::Arc;

use crate::{
    ending::Cause,
    engine::{core::PoolCore, finish::stop_matching, orders::configure_group},
    id::GroupName,
    pool_types::TypesOf,
    task::{Completion, Task},
};

/// Controls one group of a pool.
///
/// A group exists as soon as it is named. Its pause and its cap also apply to tasks that are submitted later.
pub struct Group<'a, T: Task, C: Completion<T::Output>> {
    pub(crate) core: &'a Arc<PoolCore<TypesOf<T, C>>>,
    pub(crate) name: GroupName,
}

impl<T: Task, C: Completion<T::Output>> Group<'_, T, C> {
    /// Limits how many tasks and shards of the group run at once; `None` removes the limit.
    ///
    /// Running tasks continue. A cap of 0 acts like [`pause`](Self::pause).
    pub fn cap(&self, cap: Option<usize>) {
        configure_group(self.core, &self.name, |group| group.cap = cap);
    }

    /// Starts no more tasks of the group until [`resume`](Self::resume). Running tasks continue.
    ///
    /// Paused tasks still take their place in the queue. During a shutdown they are handed back at once, because
    /// the group may never be resumed.
    pub fn pause(&self) {
        configure_group(self.core, &self.name, |group| group.paused = true);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        configure_group(self.core, &self.name, |group| group.paused = false);
    }

    /// Removes the queued tasks of the group and cancels its running long tasks. Returns how many tasks and shards
    /// that were.
    pub fn stop(&self) -> usize {
        stop_matching(self.core, Cause::Stopped, |_, spec| spec.group.as_ref() == Some(&self.name))
    }

    /// Waits until every task of the group has ended and its completion has been called.
    pub async fn wait(&self) {
        loop {
            // Created under the lock that the last task takes before it notifies.
            let drained = match self.core.lock().queue.groups.get(&self.name) {
                Some(group) if group.pending > 0 => Arc::clone(&group.drained).notified_owned(),
                _ => return,
            };
            drained.await;
        }
    }
}
