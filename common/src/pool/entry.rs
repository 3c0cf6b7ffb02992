//! An admitted task on its way to a worker, and what has to be told when it ends.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Completion, GroupName, Placement, Run, Task, TaskId, handle::HandleState, wide::Wide};

/// A task that waits.
pub(super) struct Entry<T: Task, C: Completion<T::Output>> {
    /// Order of submission; the shards of a wide task share it.
    pub(super) seq: u64,
    pub(super) id: TaskId,
    pub(super) run: Run,
    pub(super) placement: Placement,
    pub(super) group: Option<GroupName>,
    pub(super) shard: u32,
    pub(super) width: u32,
    /// Only read when somebody observes the pool: a clock read is a fifth of a short task's cost.
    pub(super) submitted: Option<Instant>,
    /// Absent once it runs.
    pub(super) task: Option<T>,
    pub(super) owner: Owner<T, C>,
}

impl<T: Task, C: Completion<T::Output>> Entry<T, C> {
    /// When the task is to be told, if it started then; none for a short one.
    pub(super) fn deadline(&self, since: Option<Instant>, default: Duration) -> Option<Instant> {
        match self.run {
            Run::Short => None,
            Run::Long { deadline } => since.map(|since| since + deadline.unwrap_or(default)),
        }
    }

    /// The trace that its completion belongs to, for logs.
    pub(super) fn trace_id(&self) -> Option<&str> {
        match &self.owner {
            Owner::One(finish) => finish.completion.trace_id(),
            Owner::Wide(_) => None,
        }
    }

    pub(super) const fn is_plain(&self) -> bool {
        self.group.is_none() && self.width == 1 && matches!(self.placement, Placement::Runtime)
    }
}

/// Who is told how it ended.
pub(super) enum Owner<T: Task, C: Completion<T::Output>> {
    One(Finish<C>),
    /// This shard and its siblings, once, together.
    Wide(Arc<Wide<T, C>>),
}

pub(super) struct Finish<C> {
    pub(super) completion: C,
    pub(super) handle: Option<Arc<HandleState>>,
}

/// Takes out what matches, keeping the order of the rest and its memory.
pub(super) fn extract<E>(queue: &mut VecDeque<E>, matches: impl Fn(&E) -> bool) -> Vec<E> {
    let mut out = Vec::new();
    if queue.iter().any(&matches) {
        for _ in 0..queue.len() {
            if let Some(entry) = queue.pop_front() {
                if matches(&entry) {
                    out.push(entry);
                } else {
                    queue.push_back(entry);
                }
            }
        }
    }
    out
}
