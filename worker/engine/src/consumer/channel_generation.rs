//! The lifetime of one AMQP channel. A delivery tag is valid only on the channel that delivered it.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use garenne_common::{shutdown::Tally, telemetry::metrics::LaneMetrics};
use garenne_protocol::settlement::Settlement;
use tokio::sync::Notify;

use super::{cancellation::Cancellation, orphan::OnOrphan};
use crate::panics::lock;

/// Counts deliveries and settlements in the shutdown receipt and in the metrics, so that both agree.
#[derive(Clone)]
pub(crate) struct SettlementCounters {
    pub(crate) tally: Arc<Tally>,
    pub(crate) lane: LaneMetrics,
}

impl SettlementCounters {
    fn delivered(&self, redelivered: bool) {
        self.tally.delivered();
        self.lane.delivered(redelivered);
    }

    pub(super) fn settled(&self, settlement: Settlement, count: u64) {
        if count > 0 {
            self.tally.settled_many(settlement, count);
            self.lane.settled_many(settlement, count);
        }
    }
}

/// Asks the channel's [`AckWriter`](super::ack_writer::AckWriter) to settle one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettleRequest {
    pub(crate) tag: u64,
    pub(crate) settlement: Settlement,
}

/// Shared by a channel's deliveries and its [`AckWriter`](super::ack_writer::AckWriter).
pub(crate) struct ChannelGeneration {
    requests: Mutex<RequestQueue>,
    /// Wakes the ack writer for the first request of a batch, unless it polls already, and for the request that
    /// fills the batch. Waking it for each request would cost more than most tasks.
    requests_ready: Notify,
    /// Requests that make the ack writer flush at once.
    pub(super) flush_at: usize,
    pub(super) counters: SettlementCounters,
    is_open: AtomicBool,
    /// Wakes the consumer when the generation ends.
    ended: Notify,
    deliveries: AtomicU64,
    requested: AtomicU64,
    /// The sum of the prefetch values of all consumers that the channel has had.
    credit: AtomicU64,
    /// The channel has a consumer to which the broker may deliver.
    is_consuming: AtomicBool,
    settlement_sent: AtomicBool,
    /// Set if the queue was deleted, or may have been: what is requeued from now on could be lost.
    cancelled: OnceLock<(Arc<Cancellation>, OnOrphan)>,
}

#[derive(Default)]
struct RequestQueue {
    /// Requests that the ack writer has not taken yet. The channel's prefetch bounds their number.
    waiting: Vec<SettleRequest>,
    /// The ack writer's last take was not empty, so it takes again at the next tick without being woken.
    polled: bool,
    /// The ack writer has ended.
    closed: bool,
}

impl ChannelGeneration {
    /// Creates the generation of a new channel. `flush_at` requests (1 or more) wake the ack writer at once.
    pub(crate) fn new(counters: SettlementCounters, flush_at: usize) -> Self {
        Self {
            requests: Mutex::default(),
            requests_ready: Notify::new(),
            flush_at,
            counters,
            is_open: AtomicBool::new(true),
            ended: Notify::new(),
            deliveries: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            credit: AtomicU64::new(0),
            is_consuming: AtomicBool::new(false),
            settlement_sent: AtomicBool::new(false),
            cancelled: OnceLock::new(),
        }
    }

    /// Whether a settlement can still reach the broker.
    ///
    /// The broker redelivers the deliveries of a dead generation, so their tasks should not be started.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Ends the generation. Until they are settled, its deliveries count as lost: deliveries, requests and the end are counted
    /// under one lock, so that the sum is exact.
    pub(crate) fn end(&self) {
        let requests = lock(&self.requests);
        if self.is_open.swap(false, Ordering::Release) {
            self.counters.lane.lost.add(self.outstanding() as i64);
        }
        drop(requests);
        self.ended.notify_one();
    }

    /// Records that the queue was deleted, or may have been. The messages that are not settled go to `on_orphan` instead of
    /// the broker. Returns why, as far as is known.
    pub(crate) fn queue_may_be_deleted(&self, on_orphan: &OnOrphan) -> Arc<Cancellation> {
        Arc::clone(&self.cancelled.get_or_init(|| (Arc::default(), Arc::clone(on_orphan))).0)
    }

    /// Takes what is requeued if the queue was deleted, or may have been.
    pub(super) fn on_orphan(&self) -> Option<&(Arc<Cancellation>, OnOrphan)> {
        self.cancelled.get()
    }

    /// Records that the broker delivered one of its unsettled messages again.
    pub(crate) fn delivered_again(&self) {
        if let Some((cancellation, _)) = self.cancelled.get() {
            cancellation.timed_out();
        }
    }

    /// Completes when the generation has ended. Supports one waiter, the consumer.
    pub(super) async fn ended(&self) {
        while self.is_open() {
            self.ended.notified().await;
        }
    }

    /// Records that a consumer with this prefetch has started on this channel.
    pub(super) fn consumer_started(&self, prefetch: u16) {
        self.credit.fetch_add(prefetch.into(), Ordering::Relaxed);
        self.is_consuming.store(true, Ordering::Release);
    }

    /// Records that the broker has answered our cancel: it sends no more deliveries.
    pub(super) fn consumer_stopped(&self) {
        self.is_consuming.store(false, Ordering::Release);
    }

    pub(super) fn is_consuming(&self) -> bool {
        self.is_consuming.load(Ordering::Acquire)
    }

    /// A lower bound for the settlements that the broker has processed.
    ///
    /// The broker sends a delivery beyond the prefetch only after it has processed a settlement.
    pub(super) fn confirmed_settlements(&self) -> u64 {
        // The deliveries are loaded first: a consumer that starts in between must not raise the result.
        let deliveries = self.deliveries();
        deliveries.saturating_sub(self.credit.load(Ordering::Relaxed))
    }

    pub(super) fn mark_settlement_sent(&self) {
        self.settlement_sent.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_sent_settlement(&self) -> bool {
        self.settlement_sent.load(Ordering::Relaxed)
    }

    pub(crate) fn count_delivery(&self, redelivered: bool) {
        let _requests = lock(&self.requests);
        self.deliveries.fetch_add(1, Ordering::Relaxed);
        self.counters.delivered(redelivered);
        if !self.is_open() {
            self.counters.lane.lost.inc();
        }
    }

    pub(crate) fn deliveries(&self) -> u64 {
        self.deliveries.load(Ordering::Relaxed)
    }

    /// The number of deliveries without a settle request.
    pub(crate) fn outstanding(&self) -> u64 {
        // The requests are loaded first: a delivery in between must not make the difference negative.
        let requested = self.requested.load(Ordering::Relaxed);
        self.deliveries().saturating_sub(requested)
    }

    /// Passes a request to the ack writer. If that has ended, the settlement is counted as lost.
    pub(crate) fn request_settlement(&self, request: SettleRequest) {
        let mut requests = lock(&self.requests);
        self.requested.fetch_add(1, Ordering::Relaxed);
        if !self.is_open() {
            self.counters.lane.lost.dec();
        }
        if requests.closed {
            drop(requests);
            return self.counters.settled(Settlement::LostSettlement, 1);
        }
        requests.waiting.push(request);
        let (waiting, polled) = (requests.waiting.len(), requests.polled);
        drop(requests);
        if (waiting == 1 && !polled) || waiting == self.flush_at {
            self.requests_ready.notify_one();
        }
    }

    /// Completes when requests may be waiting. Supports one waiter, the ack writer.
    pub(super) async fn requests_ready(&self) {
        self.requests_ready.notified().await;
    }

    /// The number of requests that the ack writer has not taken.
    pub(super) fn waiting_requests(&self) -> usize {
        lock(&self.requests).waiting.len()
    }

    /// Moves all waiting requests into `buffer`, which must be empty.
    ///
    /// If there were any, the caller must take again at the next tick: the first request of the next batch does
    /// not wake it.
    pub(super) fn take_requests(&self, buffer: &mut Vec<SettleRequest>) {
        debug_assert!(buffer.is_empty(), "requests in the buffer would be lost");
        let mut requests = lock(&self.requests);
        std::mem::swap(&mut requests.waiting, buffer);
        requests.polled = !buffer.is_empty();
    }

    /// Rejects requests from now on and returns those that were not taken.
    pub(super) fn close(&self) -> Vec<SettleRequest> {
        let mut requests = lock(&self.requests);
        requests.closed = true;
        std::mem::take(&mut requests.waiting)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use garenne_common::telemetry::Metrics;

    use super::*;

    impl ChannelGeneration {
        /// That of a channel without an ack writer. The batch size is one.
        pub(crate) fn mock() -> Arc<Self> {
            Arc::new(generation(1))
        }

        /// The requests that the ack writer has not taken, as pairs of tag and settlement.
        pub(crate) fn requested_settlements(&self) -> Vec<(u64, Settlement)> {
            lock(&self.requests).waiting.iter().map(|request| (request.tag, request.settlement)).collect()
        }
    }

    fn generation(flush_at: usize) -> ChannelGeneration {
        let counters = SettlementCounters { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
        ChannelGeneration::new(counters, flush_at)
    }

    fn ack(tag: u64) -> SettleRequest {
        SettleRequest { tag, settlement: Settlement::Acked }
    }

    /// Requests these acks and returns for each whether it woke the ack writer.
    fn wakes(generation: &ChannelGeneration, tags: std::ops::RangeInclusive<u64>) -> Vec<bool> {
        let mut wakes = Vec::new();
        for tag in tags {
            generation.request_settlement(ack(tag));
            wakes.push(generation.requests_ready().now_or_never().is_some());
        }
        wakes
    }

    #[test]
    fn the_first_request_of_a_batch_and_the_one_that_fills_it_wake_the_ack_writer() {
        assert_eq!(wakes(&generation(3), 1..=4), [true, false, true, false]);
    }

    #[test]
    fn the_first_request_wakes_the_ack_writer_only_after_an_empty_take() {
        let generation = generation(3);
        assert_eq!(wakes(&generation, 1..=2), [true, false]);
        let mut taken = Vec::new();
        generation.take_requests(&mut taken);
        assert_eq!(taken.drain(..).count(), 2);
        assert_eq!(wakes(&generation, 3..=5), [false, false, true], "a full batch always wakes it");
        generation.take_requests(&mut taken);
        assert_eq!(taken.drain(..).count(), 3);
        generation.take_requests(&mut taken);
        assert!(taken.is_empty());
        assert_eq!(wakes(&generation, 6..=6), [true]);
    }

    #[test]
    fn deliveries_beyond_the_prefetch_confirm_settlements() {
        let generation = generation(1);
        assert_eq!(generation.confirmed_settlements(), 0);
        generation.consumer_started(2);
        (0..5).for_each(|_| generation.count_delivery(false));
        assert_eq!((generation.deliveries(), generation.confirmed_settlements()), (5, 3));
        generation.consumer_started(2);
        assert_eq!(
            generation.confirmed_settlements(),
            1,
            "deliveries of the previous consumer do not use the new one's prefetch"
        );
    }

    #[test]
    fn a_delivery_without_a_settle_request_is_outstanding() {
        let generation = generation(1);
        (0..3).for_each(|_| generation.count_delivery(true));
        generation.request_settlement(ack(2));
        assert_eq!((generation.deliveries(), generation.outstanding()), (3, 2));
        assert_eq!(generation.waiting_requests(), 1);
        assert_eq!(generation.counters.tally.deliveries(), 3);
        assert_eq!(generation.counters.lane.redeliveries.get(), 3);
    }

    #[tokio::test]
    async fn the_end_of_a_generation_can_be_awaited_repeatedly() {
        let generation = generation(1);
        assert!(generation.is_open() && generation.ended().now_or_never().is_none());
        generation.end();
        assert!(!generation.is_open());
        generation.ended().await;
        generation.ended().await;
    }

    /// The broker delivers what was not settled again. Otherwise both deliveries would count as held.
    #[test]
    fn deliveries_of_an_ended_generation_are_not_held() {
        let generation = generation(10);
        let lane = generation.counters.lane.clone();
        let counts = || (lane.lost.get(), lane.held());
        (0..3).for_each(|_| generation.count_delivery(false));
        generation.request_settlement(ack(1));
        assert_eq!(counts(), (0, 3), "the settlement is not sent yet");
        generation.end();
        generation.end();
        assert_eq!(counts(), (2, 1));
        // It was received before the end and is read after it.
        generation.count_delivery(false);
        assert_eq!(counts(), (3, 1));
        generation
            .close()
            .into_iter()
            .for_each(|_| generation.counters.settled(Settlement::LostSettlement, 1));
        (2..=4).for_each(|tag| generation.request_settlement(ack(tag)));
        assert_eq!(counts(), (0, 0));
    }

    #[test]
    fn a_request_after_the_close_is_a_lost_settlement() {
        let generation = generation(1);
        generation.request_settlement(ack(1));
        assert_eq!(generation.close(), [ack(1)]);
        generation.request_settlement(ack(2));
        assert_eq!(
            (generation.waiting_requests(), generation.counters.tally.count(Settlement::LostSettlement)),
            (0, 1)
        );
    }
}
