//! What happens on one lane.

use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::register::{self, WAITS};
use crate::shutdown::Settlement;

/// The families that a lane's metrics belong to.
pub(super) struct Lanes {
    deliveries: IntCounterVec,
    redeliveries: IntCounterVec,
    settlements: IntCounterVec,
    wait: HistogramVec,
    queue_length: IntGaugeVec,
    queue_capacity: IntGaugeVec,
    workers: IntGaugeVec,
    restarts: IntCounterVec,
}

impl Lanes {
    pub(super) fn register(registry: &Registry) -> Self {
        let lane = &["lane"];
        Self {
            deliveries: register::counters(
                registry,
                "garenne_deliveries_total",
                "Messages the broker delivered.",
                lane,
            ),
            redeliveries: register::counters(
                registry,
                "garenne_redeliveries_total",
                "Deliveries that somebody had before.",
                lane,
            ),
            settlements: register::counters(
                registry,
                "garenne_settlements_total",
                "Deliveries by what became of them.",
                &["lane", "settlement"],
            ),
            wait: register::histograms(
                registry,
                "garenne_task_wait_seconds",
                "From delivery to the start of the task.",
                lane,
                WAITS,
            ),
            queue_length: register::gauges(
                registry,
                "garenne_pool_queue_length",
                "Tasks delivered and not settled yet: queued, running and settling.",
                lane,
            ),
            queue_capacity: register::gauges(
                registry,
                "garenne_pool_queue_capacity",
                "Most tasks delivered and not settled: the lane's prefetch.",
                lane,
            ),
            workers: register::gauges(
                registry,
                "garenne_pool_workers",
                "Pool workers by what they do.",
                &["lane", "state"],
            ),
            restarts: register::counters(
                registry,
                "garenne_pool_worker_restarts_total",
                "Pool workers replaced after a panic.",
                lane,
            ),
        }
    }

    pub(super) fn get(&self, lane: &str) -> LaneMetrics {
        let workers = |state| self.workers.with_label_values(&[lane, state]);
        LaneMetrics {
            deliveries: self.deliveries.with_label_values(&[lane]),
            redeliveries: self.redeliveries.with_label_values(&[lane]),
            settlements: Settlement::ALL.map(|one| self.settlements.with_label_values(&[lane, one.as_str()])),
            wait: self.wait.with_label_values(&[lane]),
            queue_length: self.queue_length.with_label_values(&[lane]),
            queue_capacity: self.queue_capacity.with_label_values(&[lane]),
            workers_idle: workers("idle"),
            workers_busy: workers("busy"),
            workers_restarting: workers("restarting"),
            worker_restarts: self.restarts.with_label_values(&[lane]),
        }
    }
}

/// One lane's metrics; a clone counts into the same.
#[derive(Debug, Clone)]
pub struct LaneMetrics {
    /// `garenne_deliveries_total`
    pub deliveries: IntCounter,
    /// `garenne_redeliveries_total`; these are deliveries too.
    pub redeliveries: IntCounter,
    settlements: [IntCounter; Settlement::ALL.len()],
    /// `garenne_task_wait_seconds`
    pub wait: Histogram,
    /// `garenne_pool_queue_length`
    pub queue_length: IntGauge,
    /// `garenne_pool_queue_capacity`
    pub queue_capacity: IntGauge,
    /// `garenne_pool_workers{state="idle"}`
    pub workers_idle: IntGauge,
    /// `garenne_pool_workers{state="busy"}`
    pub workers_busy: IntGauge,
    /// `garenne_pool_workers{state="restarting"}`
    pub workers_restarting: IntGauge,
    /// `garenne_pool_worker_restarts_total`
    pub worker_restarts: IntCounter,
}

impl LaneMetrics {
    /// Counts a delivery.
    pub fn delivered(&self, redelivered: bool) {
        self.deliveries.inc();
        if redelivered {
            self.redeliveries.inc();
        }
    }

    /// Counts into `garenne_settlements_total`.
    pub fn settled(&self, settlement: Settlement) {
        self.settlements[settlement as usize].inc();
    }

    /// Counts `count` deliveries that came to the same end.
    pub fn settled_many(&self, settlement: Settlement, count: u64) {
        self.settlements[settlement as usize].inc_by(count);
    }

    /// Deliveries that are not settled yet.
    pub fn held(&self) -> u64 {
        self.deliveries.get().saturating_sub(self.settled_total())
    }

    /// Deliveries settled so far, of whichever settlement.
    pub fn settled_total(&self) -> u64 {
        self.settlements.iter().map(IntCounter::get).sum()
    }

    /// Deliveries taken off the queue so far: done, or copied to where they go next.
    pub fn removed_total(&self) -> u64 {
        let settlements = [Settlement::Acked, Settlement::Retried, Settlement::Dead, Settlement::Quarantined];
        settlements.into_iter().map(|settlement| self.settlements[settlement as usize].get()).sum()
    }

    /// The time from delivery to the start of the task.
    pub fn waited(&self, wait: Duration) {
        self.wait.observe(wait.as_secs_f64());
    }
}
