//! One life of a channel. Tags mean something only within it.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use garenne_common::shutdown::Settlement;
use tokio::sync::Notify;

use super::counters::SettlementCounters;

/// What is decided of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettleRequest {
    pub(crate) tag: u64,
    pub(crate) settlement: Settlement,
}

/// Shared by a channel's deliveries and its ack_writer.
pub(crate) struct ChannelGeneration {
    orders: Mutex<SettleRequests>,
    /// Told of the first order of a batch, unless the ack_writer will look for it, and of the one that fills it,
    /// and of none between: to wake the ack_writer costs more than a task.
    news: Notify,
    batch: usize,
    counters: SettlementCounters,
    alive: AtomicBool,
    /// Told when it ends; for the consumer only.
    over: Notify,
    delivered: AtomicU64,
    ordered: AtomicU64,
    /// Deliveries that the broker lets its consumers hold unsettled, over all that the channel had.
    credit: AtomicU64,
    /// Whether a settlement was sent.
    settled: AtomicBool,
}

#[derive(Default)]
struct SettleRequests {
    /// What the ack_writer has not taken yet. The channel's prefetch bounds it.
    waiting: Vec<SettleRequest>,
    /// The ack_writer took some the last time, so it will look again in a moment.
    watched: bool,
    /// The ack_writer is gone.
    closed: bool,
}

impl ChannelGeneration {
    /// An generation whose ack_writer wants to be told when so many orders wait, 1 or more.
    pub(crate) fn new(counters: SettlementCounters, batch: usize) -> Self {
        Self {
            orders: Mutex::default(),
            news: Notify::new(),
            batch,
            counters,
            alive: AtomicBool::new(true),
            over: Notify::new(),
            delivered: AtomicU64::new(0),
            ordered: AtomicU64::new(0),
            credit: AtomicU64::new(0),
            settled: AtomicBool::new(false),
        }
    }

    /// Whether a settlement can still reach the broker. A delivery of a dead generation will be
    /// redelivered: there is no point in starting it.
    pub(crate) fn alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.alive.store(false, Ordering::Release);
        self.over.notify_one();
    }

    /// Completes when no settlement can reach the broker any more; for the consumer only.
    pub(super) async fn over(&self) {
        while self.alive() {
            self.over.notified().await;
        }
    }

    /// A consumer begins on the channel, with this prefetch.
    pub(super) fn grant(&self, prefetch: u16) {
        self.credit.fetch_add(prefetch.into(), Ordering::Relaxed);
    }

    /// Settlements that the broker must have heard: it sends a delivery beyond the prefetch only after it
    /// settled another one.
    pub(super) fn heard(&self) -> u64 {
        // Deliveries first: a consumer in between must not make them too many.
        let delivered = self.deliveries();
        delivered.saturating_sub(self.credit.load(Ordering::Relaxed))
    }

    pub(super) fn mark_settled(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    /// Whether a settlement was sent on this channel.
    pub(super) fn has_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    pub(crate) fn count_delivery(&self, redelivered: bool) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
        self.counters.delivered(redelivered);
    }

    pub(crate) fn deliveries(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Deliveries without an order yet.
    pub(crate) fn outstanding(&self) -> u64 {
        // SettleRequests first: a delivery in between must not make the difference negative.
        let ordered = self.ordered.load(Ordering::Relaxed);
        self.deliveries().saturating_sub(ordered)
    }

    /// Passes an order to the ack_writer. Where that is gone the channel died: the settlement is lost.
    pub(crate) fn order(&self, order: SettleRequest) {
        self.ordered.fetch_add(1, Ordering::Relaxed);
        let mut orders = self.orders();
        if orders.closed {
            drop(orders);
            return self.counters.settled(Settlement::LostSettlement, 1);
        }
        orders.waiting.push(order);
        let (waiting, watched) = (orders.waiting.len(), orders.watched);
        drop(orders);
        if (waiting == 1 && !watched) || waiting == self.batch {
            self.news.notify_one();
        }
    }

    /// Completes when orders may wait; for the ack_writer only.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// SettleRequests that wait for the ack_writer.
    pub(super) fn waiting(&self) -> usize {
        self.orders().waiting.len()
    }

    /// Takes every waiting order into a buffer, which must be empty. Whoever took some takes again in a moment:
    /// until a take finds none, the first order of a batch is told to nobody.
    pub(super) fn take(&self, into: &mut Vec<SettleRequest>) {
        debug_assert!(into.is_empty(), "orders would be lost");
        let mut orders = self.orders();
        std::mem::swap(&mut orders.waiting, into);
        orders.watched = !into.is_empty();
    }

    /// The settlements that were decided and not taken, by their tags.
    #[cfg(test)]
    pub(crate) fn requested_settlements(&self) -> Vec<(u64, Settlement)> {
        self.orders().waiting.iter().map(|order| (order.tag, order.settlement)).collect()
    }

    /// Takes no order any more; answers those that came too late to be taken.
    pub(super) fn close(&self) -> Vec<SettleRequest> {
        let mut orders = self.orders();
        orders.closed = true;
        std::mem::take(&mut orders.waiting)
    }

    fn orders(&self) -> MutexGuard<'_, SettleRequests> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use garenne_common::telemetry::Metrics;

    use super::*;

    fn generation(batch: usize) -> ChannelGeneration {
        let counters =
            SettlementCounters { tally: std::sync::Arc::default(), lane: Metrics::new("test").lane("test") };
        ChannelGeneration::new(counters, batch)
    }

    fn ack(tag: u64) -> SettleRequest {
        SettleRequest { tag, settlement: Settlement::Acked }
    }

    /// Which of so many orders wakes the ack_writer.
    fn woken(generation: &ChannelGeneration, tags: std::ops::RangeInclusive<u64>) -> Vec<bool> {
        let mut woken = Vec::new();
        for tag in tags {
            generation.order(ack(tag));
            woken.push(generation.news().now_or_never().is_some());
        }
        woken
    }

    #[test]
    fn the_settler_is_woken_by_the_first_of_a_batch_and_by_the_one_that_fills_it() {
        assert_eq!(woken(&generation(3), 1..=4), [true, false, true, false]);
    }

    #[test]
    fn a_settler_that_took_some_looks_again_by_itself_until_it_finds_none() {
        let generation = generation(3);
        assert_eq!(woken(&generation, 1..=2), [true, false]);
        let mut taken = Vec::new();
        generation.take(&mut taken);
        assert_eq!(taken.drain(..).count(), 2);
        assert_eq!(woken(&generation, 3..=5), [false, false, true], "a full batch is told all the same");
        generation.take(&mut taken);
        assert_eq!(taken.drain(..).count(), 3);
        generation.take(&mut taken);
        assert!(taken.is_empty());
        assert_eq!(woken(&generation, 6..=6), [true]);
    }

    #[test]
    fn deliveries_beyond_the_prefetch_prove_that_settlements_were_heard() {
        let generation = generation(1);
        assert_eq!(generation.heard(), 0);
        generation.grant(2);
        (0..5).for_each(|_| generation.count_delivery(false));
        assert_eq!((generation.deliveries(), generation.heard()), (5, 3));
        generation.grant(2);
        assert_eq!(generation.heard(), 1, "what the former consumer holds is not in the new one's prefetch");
    }

    #[test]
    fn what_is_not_ordered_yet_is_outstanding() {
        let generation = generation(1);
        (0..3).for_each(|_| generation.count_delivery(true));
        generation.order(ack(2));
        assert_eq!((generation.deliveries(), generation.outstanding(), generation.waiting()), (3, 2, 1));
        assert_eq!(generation.counters.tally.deliveries(), 3);
        assert_eq!(generation.counters.lane.redeliveries.get(), 3);
    }

    #[tokio::test]
    async fn its_end_is_told_once_it_came() {
        let generation = generation(1);
        assert!(generation.alive() && generation.over().now_or_never().is_none());
        generation.end();
        assert!(!generation.alive());
        generation.over().await;
        generation.over().await;
    }

    #[test]
    fn what_comes_after_the_end_is_counted_as_lost() {
        let generation = generation(1);
        generation.order(ack(1));
        assert_eq!(generation.close(), [ack(1)]);
        generation.order(ack(2));
        assert_eq!(
            (generation.waiting(), generation.counters.tally.count(Settlement::LostSettlement)),
            (0, 1)
        );
    }
}
