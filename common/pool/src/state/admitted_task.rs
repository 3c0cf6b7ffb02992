//! A task between its admission and its end.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{multi_worker_task::MultiWorkerTask, notifier::Notifier};
use crate::{
    completion::Completion,
    group_name::GroupName,
    saturating_instant,
    spec::{Placement, Run},
    task::Task,
    task_id::TaskId,
};

/// An admitted task, or one shard of a task that runs on several workers.
pub(crate) struct AdmittedTask<T: Task, C: Completion<T::Output>> {
    /// Order of admission. The shards of a task share it.
    pub(crate) seq: u64,
    pub(crate) id: TaskId,
    pub(crate) run: Run,
    pub(crate) placement: Placement,
    pub(crate) group: Option<GroupName>,
    pub(crate) shard: u32,
    pub(crate) width: u32,
    /// Recorded only for an observed pool: reading the clock is a fifth of the cost of a short task.
    pub(crate) submitted: Option<Instant>,
    /// Absent once the task runs.
    pub(crate) task: Option<T>,
    pub(crate) owner: TaskOwner<T, C>,
}

/// Who receives the ending of a task or shard.
pub(crate) enum TaskOwner<T: Task, C: Completion<T::Output>> {
    /// The task's own completion.
    Single(Notifier<C>),
    /// The task that this shard belongs to.
    Shard(Arc<MultiWorkerTask<T, C>>),
}

impl<T: Task, C: Completion<T::Output>> AdmittedTask<T, C> {
    /// When the task is cancelled if it started at `since`; `None` for a short task.
    pub(crate) fn deadline(&self, since: Option<Instant>, default: Duration) -> Option<Instant> {
        match self.run {
            Run::Short => None,
            Run::Long { deadline } => {
                since.map(|since| saturating_instant::add(since, deadline.unwrap_or(default)))
            }
        }
    }

    /// Whether any worker may run the task on the runtime, without regard to groups and shards.
    pub(crate) const fn is_plain(&self) -> bool {
        self.group.is_none() && self.width == 1 && matches!(self.placement, Placement::Runtime)
    }
}

/// Removes the matching elements. Keeps the order and the allocation of the others.
pub(crate) fn extract<E>(queue: &mut VecDeque<E>, matches: impl Fn(&E) -> bool) -> Vec<E> {
    let mut out = Vec::new();
    if queue.iter().any(&matches) {
        for _ in 0..queue.len() {
            if let Some(element) = queue.pop_front() {
                if matches(&element) {
                    out.push(element);
                } else {
                    queue.push_back(element);
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extract_keeps_the_order_of_both_parts() {
        let mut queue: VecDeque<u32> = (0..7).collect();
        assert_eq!(extract(&mut queue, |number| number % 3 == 0), [0, 3, 6]);
        assert_eq!(queue, [1, 2, 4, 5]);
        assert_eq!(extract(&mut queue, |number| *number > 9), [0; 0]);
        assert_eq!(queue, [1, 2, 4, 5]);
    }
}
