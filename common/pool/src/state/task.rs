//! A task between its admission and its end.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    ending::{Cause, Ending},
    handle::HandleState,
    panic::lock,
    pool_types::PoolTypes,
    spec::{Placement, Run, Spec},
    timer::saturating_add,
};

/// An admitted task, or one shard of a task that runs on several workers.
pub(crate) struct AdmittedTask<P: PoolTypes> {
    /// Order of admission. The shards of a task share it.
    pub(crate) seq: u64,
    pub(crate) spec: Spec,
    pub(crate) shard: u32,
    /// Recorded only for an observed pool: reading the clock is a fifth of the cost of a short task.
    pub(crate) submitted: Option<Instant>,
    /// Absent once the task runs.
    pub(crate) task: Option<P::Task>,
    pub(crate) owner: TaskOwner<P>,
}

/// The receiver of the ending of a task or shard.
pub(crate) enum TaskOwner<P: PoolTypes> {
    /// The task's own completion.
    Single(Notifier<P::Completion>),
    /// The task that this shard belongs to.
    Shard(Arc<Mutex<MultiWorkerTask<P>>>),
}

/// The completion of a task and the state of its handle, if it has one.
pub(crate) struct Notifier<C> {
    pub(crate) completion: C,
    pub(crate) handle: Option<Arc<HandleState>>,
}

/// A task that runs on several workers: its shards end one by one, the task ends once.
pub(crate) struct MultiWorkerTask<P: PoolTypes> {
    /// Shards that have not ended, including queued ones.
    remaining: u32,
    /// All shards but the first, until the first one starts.
    pub(crate) unstarted: Vec<P::Task>,
    outputs: Vec<P::Output>,
    cancelled: Option<Cause>,
    failure: Option<Ending<P::Output>>,
    pub(crate) notifier: Option<Notifier<P::Completion>>,
}

/// Consequence of the end of one shard.
pub(crate) enum ShardEnd<P: PoolTypes> {
    /// Nothing: the other shards continue.
    Continue,
    /// The shard was the first to fail: cancel the others and start no more of them.
    StopSiblings,
    /// The shard was the last one: the task ends.
    Last {
        notifier: Notifier<P::Completion>,
        /// The outputs of the shards that finished, in the order in which they ended.
        outputs: Vec<P::Output>,
        cancelled: Option<Cause>,
        /// The first failure.
        failure: Option<Ending<P::Output>>,
    },
}

impl<P: PoolTypes> AdmittedTask<P> {
    /// When the task is cancelled if it started at `since`; `None` for a short task.
    pub(crate) fn deadline(&self, since: Option<Instant>, default: Duration) -> Option<Instant> {
        match self.spec.run {
            Run::Short => None,
            Run::Long { deadline } => Some(saturating_add(since?, deadline.unwrap_or(default))),
        }
    }

    /// Whether any worker may run the task on the runtime, without regard to groups and shards.
    pub(crate) const fn is_plain(&self) -> bool {
        self.spec.group.is_none() && self.spec.width == 1 && matches!(self.spec.placement, Placement::Runtime)
    }
}

impl<P: PoolTypes> TaskOwner<P> {
    /// The task or one of its shards starts.
    pub(crate) fn started(&self) {
        match self {
            Self::Single(notifier) => notifier.started(),
            Self::Shard(whole) => lock(whole).notifier.iter().for_each(Notifier::started),
        }
    }
}

impl<C> Notifier<C> {
    fn started(&self) {
        if let Some(handle) = &self.handle {
            handle.start();
        }
    }
}

impl<P: PoolTypes> MultiWorkerTask<P> {
    /// `unstarted` are all shards but the first.
    pub(crate) fn new(unstarted: Vec<P::Task>, width: u32, notifier: Notifier<P::Completion>) -> Self {
        Self {
            remaining: width,
            unstarted,
            outputs: Vec::with_capacity(width as usize),
            cancelled: None,
            failure: None,
            notifier: Some(notifier),
        }
    }

    /// `ending` is `None` for a helper that did not start, which changes nothing.
    pub(crate) fn shard_ended(&mut self, ending: Option<Ending<P::Output>>) -> ShardEnd<P> {
        self.remaining -= 1;
        let mut first_failure = false;
        match ending {
            None => {}
            Some(Ending::Finished { output, cancelled_by }) => {
                self.outputs.push(output);
                self.cancelled = self.cancelled.or(cancelled_by);
            }
            Some(failure) => {
                first_failure = self.failure.is_none();
                self.failure.get_or_insert(failure);
            }
        }
        if self.remaining == 0
            && let Some(notifier) = self.notifier.take()
        {
            let outputs = std::mem::take(&mut self.outputs);
            return ShardEnd::Last {
                notifier,
                outputs,
                cancelled: self.cancelled,
                failure: self.failure.take(),
            };
        }
        if first_failure { ShardEnd::StopSiblings } else { ShardEnd::Continue }
    }
}

/// Removes the matching elements. Keeps the order of the others.
pub(crate) fn extract<E>(queue: &mut VecDeque<E>, matches: impl Fn(&E) -> bool) -> Vec<E> {
    if !queue.iter().any(&matches) {
        return Vec::new();
    }
    let (matching, others): (Vec<E>, Vec<E>) = std::mem::take(queue).into_iter().partition(matches);
    *queue = others.into();
    matching
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
