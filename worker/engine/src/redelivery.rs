//! Tracks long tasks, so that a task does not run twice on one worker.
//!
//! If a channel dies, by a reconnect or by the broker's consumer timeout, the broker redelivers its messages. If
//! the task of a redelivered message still runs here, the new delivery replaces the lost one. Nothing else changes the
//! delivery of a task.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex},
};

use garenne_protocol::task::{Envelope, TaskId};

use crate::{consumer::Delivery, in_flight::InFlight, panics::lock};

/// A task that waits or runs.
pub(crate) enum PooledTask {
    /// A short task or a batch.
    Owned(InFlight),
    /// A long task. If the message is redelivered while the task runs, the new delivery takes the place of the lost one.
    Tracked(TaskSlot, Arc<Envelope>),
}

/// A long task that waits or runs; empty once it ended.
type TaskSlot = Arc<Mutex<Option<InFlight>>>;

impl PooledTask {
    /// Whether a settlement can still reach the broker.
    pub(crate) fn channel_is_open(&self) -> bool {
        match self {
            Self::Owned(task) => task.delivery.channel_is_open(),
            Self::Tracked(slot, _) => lock(slot).as_ref().is_some_and(|task| task.delivery.channel_is_open()),
        }
    }

    /// The trace of the task. Each record of a batch has one of its own.
    pub(crate) fn trace_id(&self) -> Option<&str> {
        match self {
            Self::Owned(task) if task.batch.is_some() => None,
            Self::Owned(task) => task.envelope.trace_id(),
            Self::Tracked(_, envelope) => envelope.trace_id(),
        }
    }
}

/// Bound for remembered tasks that succeeded. The broker can redeliver at most a prefetch of them.
const MAX_SUCCEEDED: usize = 4096;

/// The tasks whose delivery a redelivery may replace, and succeeded tasks whose settlement may be lost.
#[derive(Default)]
pub(crate) struct RedeliveryTracker {
    running: Mutex<HashMap<TaskId, TaskSlot>>,
    succeeded: Mutex<SucceededTasks>,
}

/// A bounded set of task ids. Adding to a full set removes the oldest id.
#[derive(Default)]
struct SucceededTasks {
    ids: HashSet<TaskId>,
    /// The same ids, oldest first.
    order: VecDeque<TaskId>,
}

impl SucceededTasks {
    fn insert(&mut self, id: &TaskId) {
        if self.ids.insert(id.clone()) {
            self.order.push_back(id.clone());
            if self.order.len() > MAX_SUCCEEDED
                && let Some(oldest) = self.order.pop_front()
            {
                self.ids.remove(&oldest);
            }
        }
    }
}

impl RedeliveryTracker {
    /// Registers a long task. Call it before the task enters the pool.
    pub(crate) fn track(&self, task: InFlight) -> PooledTask {
        let envelope = Arc::clone(&task.envelope);
        let slot = Arc::new(Mutex::new(Some(task)));
        lock(&self.running).insert(envelope.id.clone(), Arc::clone(&slot));
        PooledTask::Tracked(slot, envelope)
    }

    /// Returns a task that ended, with its latest delivery. [`None`] only if it was returned before.
    pub(crate) fn release(&self, task: PooledTask) -> Option<InFlight> {
        let (slot, envelope) = match task {
            PooledTask::Owned(task) => return Some(task),
            PooledTask::Tracked(slot, envelope) => (slot, envelope),
        };
        let mut running = lock(&self.running);
        if running.get(&envelope.id).is_some_and(|tracked| Arc::ptr_eq(tracked, &slot)) {
            running.remove(&envelope.id);
        }
        drop(running);
        lock(&slot).take()
    }

    /// Replaces a lost delivery with its redelivery, if the task still runs here. Otherwise returns the redelivery.
    pub(crate) fn replace_lost(&self, id: &TaskId, delivery: Delivery) -> Option<Delivery> {
        let Some(slot) = lock(&self.running).get(id).cloned() else { return Some(delivery) };
        let mut running = lock(&slot);
        if let Some(task) = running.as_mut().filter(|task| !task.delivery.channel_is_open()) {
            task.delivery.generation().delivered_again();
            task.delivery = delivery;
            return None;
        }
        Some(delivery)
    }

    /// Remembers a task that succeeded, but whose settlement may not reach the broker.
    pub(crate) fn mark_succeeded(&self, id: &TaskId) {
        lock(&self.succeeded).insert(id);
    }

    /// Whether this task was remembered by [`mark_succeeded`](Self::mark_succeeded).
    pub(crate) fn has_succeeded(&self, id: &TaskId) -> bool {
        lock(&self.succeeded).ids.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use garenne_protocol::settlement::Settlement;

    use super::*;
    use crate::{
        consumer::{ChannelGeneration, OnOrphan},
        spans::AttemptSpan,
        testing::finished,
    };

    fn id(name: &str) -> TaskId {
        TaskId::parse(name).unwrap()
    }

    /// The task `t` with this delivery.
    fn task(generation: &Arc<ChannelGeneration>, tag: u64) -> InFlight {
        let envelope = finished("t", "{}").envelope;
        let (delivery, span) = (Delivery::for_test(generation, tag), AttemptSpan::default());
        InFlight { lane: "test".into(), delivery, envelope, span, batch: None }
    }

    /// The number of deliveries of a channel that were settled or requeued.
    fn settled(generation: &ChannelGeneration, delivered: u64) -> u64 {
        (0..delivered).for_each(|_| generation.count_delivery(false));
        delivered - generation.outstanding()
    }

    #[test]
    fn a_task_is_returned_when_it_ends() {
        let (redeliveries, generation) = (RedeliveryTracker::default(), ChannelGeneration::mock());
        let slot = redeliveries.track(task(&generation, 1));
        let delivery = redeliveries.release(slot).expect("the task").delivery;
        assert!(lock(&redeliveries.running).is_empty());
        delivery.settle(Settlement::Acked);
        assert_eq!(settled(&generation, 1), 1);
    }

    #[test]
    fn a_redelivery_replaces_the_lost_delivery_of_a_running_task() {
        let (redeliveries, old, new) =
            (RedeliveryTracker::default(), ChannelGeneration::mock(), ChannelGeneration::mock());
        let slot = redeliveries.track(task(&old, 1));
        old.end();
        assert!(redeliveries.replace_lost(&id("t"), Delivery::for_test(&new, 2)).is_none());
        assert_eq!(settled(&old, 1), 1, "the lost delivery is dropped");
        let delivery = redeliveries.release(slot).expect("the task").delivery;
        assert!(delivery.channel_is_open(), "it is the redelivery");
        drop(delivery);
        assert_eq!(settled(&new, 1), 1);
    }

    /// After a consumer timeout, which looks like a deleted queue at first.
    #[tokio::test]
    async fn a_redelivery_of_a_running_task_proves_that_its_queue_delivers_again() {
        let (redeliveries, old, new) =
            (RedeliveryTracker::default(), ChannelGeneration::mock(), ChannelGeneration::mock());
        let on_orphan: OnOrphan = Arc::new(|orphan| {
            assert_eq!(orphan.cancellation.delivers_again(None).now_or_never(), Some(true));
        });
        let cancellation = old.queue_may_be_deleted(&on_orphan);
        let slot = redeliveries.track(task(&old, 1));
        old.end();
        assert!(redeliveries.replace_lost(&id("t"), Delivery::for_test(&new, 2)).is_none());
        assert!(redeliveries.release(slot).is_some());
        assert_eq!(cancellation.delivers_again(None).now_or_never(), Some(true));
    }

    #[test]
    fn a_delivery_that_can_still_be_settled_is_not_replaced() {
        let (redeliveries, one, other) =
            (RedeliveryTracker::default(), ChannelGeneration::mock(), ChannelGeneration::mock());
        let slot = redeliveries.track(task(&one, 1));
        let twin =
            redeliveries.replace_lost(&id("t"), Delivery::for_test(&other, 2)).expect("it is returned");
        assert!(twin.channel_is_open());
        assert!(redeliveries.release(slot).is_some());
    }

    #[test]
    fn a_redelivery_of_a_task_that_does_not_run_here_is_returned() {
        let (redeliveries, old, new) =
            (RedeliveryTracker::default(), ChannelGeneration::mock(), ChannelGeneration::mock());
        assert!(redeliveries.replace_lost(&id("t"), Delivery::for_test(&new, 1)).is_some());
        let slot = redeliveries.track(task(&old, 1));
        old.end();
        assert!(redeliveries.replace_lost(&id("other"), Delivery::for_test(&new, 2)).is_some());
        assert!(redeliveries.release(slot).is_some());
        assert!(redeliveries.replace_lost(&id("t"), Delivery::for_test(&new, 3)).is_some(), "the task ended");
    }

    /// The task ends on one thread while its message is redelivered on another.
    #[test]
    fn a_delivery_of_an_ended_task_is_not_replaced() {
        let (redeliveries, old, new) =
            (RedeliveryTracker::default(), ChannelGeneration::mock(), ChannelGeneration::mock());
        let slot = redeliveries.track(task(&old, 1));
        old.end();
        let PooledTask::Tracked(held, _) = &slot else { panic!("it is tracked") };
        drop(held.lock().unwrap().take());
        assert!(redeliveries.replace_lost(&id("t"), Delivery::for_test(&new, 2)).is_some());
        assert!(redeliveries.release(slot).is_none());
    }

    #[test]
    fn the_end_of_one_of_two_runs_with_the_same_id_leaves_the_other() {
        let (redeliveries, old, new, newest) = (
            RedeliveryTracker::default(),
            ChannelGeneration::mock(),
            ChannelGeneration::mock(),
            ChannelGeneration::mock(),
        );
        let first = redeliveries.track(task(&old, 1));
        let second = redeliveries.track(task(&new, 2));
        assert!(redeliveries.release(first).is_some());
        new.end();
        assert!(
            redeliveries.replace_lost(&id("t"), Delivery::for_test(&newest, 3)).is_none(),
            "the second still runs"
        );
        assert!(redeliveries.release(second).is_some_and(|task| task.delivery.channel_is_open()));
        assert!(lock(&redeliveries.running).is_empty());
    }

    #[test]
    fn a_succeeded_task_is_remembered() {
        let redeliveries = RedeliveryTracker::default();
        assert!(!redeliveries.has_succeeded(&id("t")));
        redeliveries.mark_succeeded(&id("t"));
        assert!(redeliveries.has_succeeded(&id("t")) && !redeliveries.has_succeeded(&id("other")));
    }

    #[test]
    fn the_oldest_succeeded_task_is_forgotten_when_the_set_is_full() {
        let redeliveries = RedeliveryTracker::default();
        let name = |n: usize| id(&format!("t{n}"));
        (0..MAX_SUCCEEDED).for_each(|n| redeliveries.mark_succeeded(&name(n)));
        // Remembered twice, it takes one place.
        redeliveries.mark_succeeded(&name(5));
        assert!((0..MAX_SUCCEEDED).all(|n| redeliveries.has_succeeded(&name(n))));
        redeliveries.mark_succeeded(&name(MAX_SUCCEEDED));
        assert!(!redeliveries.has_succeeded(&name(0)));
        assert!((1..=MAX_SUCCEEDED).all(|n| redeliveries.has_succeeded(&name(n))));
        let succeeded = redeliveries.succeeded.lock().unwrap();
        assert_eq!((succeeded.ids.len(), succeeded.order.len()), (MAX_SUCCEEDED, MAX_SUCCEEDED));
    }
}
