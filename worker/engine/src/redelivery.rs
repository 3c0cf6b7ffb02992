//! Deliveries of long tasks while they run, so that a message that comes back while its task still
//! runs here takes the lost delivery's place instead of running beside it.
//!
//! It comes back when its channel died under it: a reconnect, or the broker's consumer timeout.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use garenne_protocol::task::TaskId;

use crate::consumer::Delivery;

/// The delivery of a running task; empty once it is settled.
pub(crate) type DeliverySlot = Arc<Mutex<Option<Delivery>>>;

/// Tasks that ended after their channel died or after they came back; more than a prefetch of them need not be
/// remembered.
const REMEMBERED: usize = 4096;

/// Every slot that may be renewed, and the tasks whose settlement may be lost after they succeeded.
#[derive(Default)]
pub(crate) struct RedeliveryTracker {
    running: Mutex<HashMap<TaskId, DeliverySlot>>,
    done: Mutex<Done>,
}

#[derive(Default)]
struct Done {
    ids: HashSet<TaskId>,
    order: VecDeque<TaskId>,
}

impl RedeliveryTracker {
    /// Registers a task that is about to be queued.
    pub(crate) fn track(&self, id: &TaskId, delivery: Delivery) -> DeliverySlot {
        let slot = Arc::new(Mutex::new(Some(delivery)));
        self.running().insert(id.clone(), Arc::clone(&slot));
        slot
    }

    /// Gives the delivery back when the task ended.
    pub(crate) fn finish(&self, id: &TaskId, slot: &DeliverySlot) -> Option<Delivery> {
        let mut running = self.running();
        if running.get(id).is_some_and(|known| Arc::ptr_eq(known, slot)) {
            running.remove(id);
        }
        drop(running);
        slot.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts a delivery that came back in the place of the lost one, if its task still runs here;
    /// answers the delivery where it does not.
    pub(crate) fn replace_lost(&self, id: &TaskId, delivery: Delivery) -> Option<Delivery> {
        let Some(slot) = self.running().get(id).cloned() else { return Some(delivery) };
        let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if held.as_ref().is_some_and(|old| !old.alive()) {
            *held = Some(delivery);
            return None;
        }
        Some(delivery)
    }

    /// Notes a task that succeeded when its settlement may not reach the broker.
    pub(crate) fn mark_succeeded(&self, id: &TaskId) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.ids.insert(id.clone()) {
            done.order.push_back(id.clone());
            if done.order.len() > REMEMBERED
                && let Some(oldest) = done.order.pop_front()
            {
                done.ids.remove(&oldest);
            }
        }
    }

    /// Whether such a task is what came back.
    pub(crate) fn has_succeeded(&self, id: &TaskId) -> bool {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).ids.contains(id)
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, DeliverySlot>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use garenne_common::{shutdown::Settlement, telemetry::Metrics};

    use super::*;
    use crate::consumer::{ChannelGeneration, SettlementCounters};

    fn generation() -> Arc<ChannelGeneration> {
        let counters = SettlementCounters { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
        Arc::new(ChannelGeneration::new(counters, 1))
    }

    fn id(name: &str) -> TaskId {
        TaskId::parse(name).unwrap()
    }

    /// How many deliveries of a channel were settled or handed back.
    fn settled(generation: &ChannelGeneration, delivered: u64) -> u64 {
        (0..delivered).for_each(|_| generation.count_delivery(false));
        delivered - generation.outstanding()
    }

    #[test]
    fn a_delivery_is_given_back_once_when_its_task_ends() {
        let (redeliveries, generation) = (RedeliveryTracker::default(), generation());
        let slot = redeliveries.track(&id("t"), Delivery::for_test(&generation, 1));
        let delivery = redeliveries.finish(&id("t"), &slot).expect("the delivery");
        assert!(redeliveries.finish(&id("t"), &slot).is_none(), "only once");
        assert!(redeliveries.running().is_empty());
        delivery.settle(Settlement::Acked);
        assert_eq!(settled(&generation, 1), 1);
    }

    #[test]
    fn a_message_that_comes_back_takes_the_place_of_the_lost_delivery() {
        let (redeliveries, old, new) = (RedeliveryTracker::default(), generation(), generation());
        let slot = redeliveries.track(&id("t"), Delivery::for_test(&old, 1));
        old.end();
        assert!(redeliveries.replace_lost(&id("t"), Delivery::for_test(&new, 2)).is_none());
        assert_eq!(settled(&old, 1), 1, "the lost one is let go of");
        let delivery = redeliveries.finish(&id("t"), &slot).expect("the delivery");
        assert!(delivery.alive(), "it is the one that came back");
        drop(delivery);
        assert_eq!(settled(&new, 1), 1);
    }

    #[test]
    fn a_message_is_not_taken_for_another_delivery_that_can_still_be_settled() {
        let (redeliveries, one, other) = (RedeliveryTracker::default(), generation(), generation());
        let slot = redeliveries.track(&id("t"), Delivery::for_test(&one, 1));
        let twin =
            redeliveries.replace_lost(&id("t"), Delivery::for_test(&other, 2)).expect("it runs beside it");
        assert!(twin.alive());
        assert!(redeliveries.finish(&id("t"), &slot).is_some());
    }

    #[test]
    fn a_message_whose_task_does_not_run_here_is_given_back() {
        let (redeliveries, old, new) = (RedeliveryTracker::default(), generation(), generation());
        assert!(redeliveries.replace_lost(&id("t"), Delivery::for_test(&new, 1)).is_some());
        let slot = redeliveries.track(&id("t"), Delivery::for_test(&old, 1));
        old.end();
        assert!(redeliveries.replace_lost(&id("other"), Delivery::for_test(&new, 2)).is_some());
        assert!(redeliveries.finish(&id("t"), &slot).is_some());
        assert!(redeliveries.replace_lost(&id("t"), Delivery::for_test(&new, 3)).is_some(), "it ended");
    }

    /// The task ends on one thread while its message comes back on another.
    #[test]
    fn a_delivery_that_was_given_back_is_not_renewed() {
        let (redeliveries, old, new) = (RedeliveryTracker::default(), generation(), generation());
        let slot = redeliveries.track(&id("t"), Delivery::for_test(&old, 1));
        old.end();
        drop(slot.lock().unwrap().take());
        assert!(redeliveries.replace_lost(&id("t"), Delivery::for_test(&new, 2)).is_some());
        assert!(redeliveries.finish(&id("t"), &slot).is_none());
    }

    #[test]
    fn of_two_runs_under_one_id_the_end_of_the_first_leaves_the_second() {
        let (redeliveries, old, new, newest) =
            (RedeliveryTracker::default(), generation(), generation(), generation());
        let first = redeliveries.track(&id("t"), Delivery::for_test(&old, 1));
        let second = redeliveries.track(&id("t"), Delivery::for_test(&new, 2));
        assert!(redeliveries.finish(&id("t"), &first).is_some());
        new.end();
        assert!(
            redeliveries.replace_lost(&id("t"), Delivery::for_test(&newest, 3)).is_none(),
            "the second still runs"
        );
        assert!(redeliveries.finish(&id("t"), &second).is_some_and(|delivery| delivery.alive()));
        assert!(redeliveries.running().is_empty());
    }

    #[test]
    fn a_task_that_ended_too_late_to_be_settled_is_remembered() {
        let redeliveries = RedeliveryTracker::default();
        assert!(!redeliveries.has_succeeded(&id("t")));
        redeliveries.mark_succeeded(&id("t"));
        assert!(redeliveries.has_succeeded(&id("t")) && !redeliveries.has_succeeded(&id("other")));
    }

    #[test]
    fn so_many_are_remembered_and_the_oldest_are_forgotten_first() {
        let redeliveries = RedeliveryTracker::default();
        let name = |n: usize| id(&format!("t{n}"));
        (0..REMEMBERED).for_each(|n| redeliveries.mark_succeeded(&name(n)));
        // Noted again, it takes no second place.
        redeliveries.mark_succeeded(&name(5));
        assert!((0..REMEMBERED).all(|n| redeliveries.has_succeeded(&name(n))));
        redeliveries.mark_succeeded(&name(REMEMBERED));
        assert!(!redeliveries.has_succeeded(&name(0)));
        assert!((1..=REMEMBERED).all(|n| redeliveries.has_succeeded(&name(n))));
        let done = redeliveries.done.lock().unwrap();
        assert_eq!((done.ids.len(), done.order.len()), (REMEMBERED, REMEMBERED));
    }
}
