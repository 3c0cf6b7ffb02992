//! Metrics per lane.

use std::time::Duration;

use garenne_protocol::settlement::Settlement;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::register::{NewMetrics, WAITS};

/// The metric families labelled by lane.
pub(super) struct Lanes {
    deliveries: IntCounterVec,
    redeliveries: IntCounterVec,
    settlements: IntCounterVec,
    wait: HistogramVec,
    lost: IntGaugeVec,
    queue_length: IntGaugeVec,
    queue_capacity: IntGaugeVec,
    workers: IntGaugeVec,
    restarts: IntCounterVec,
}

impl Lanes {
    pub(super) fn register(new: &NewMetrics<'_>) -> Self {
        let lane = &["lane"];
        Self {
            deliveries: new.counters("garenne_deliveries_total", "Messages delivered by the broker.", lane),
            redeliveries: new.counters(
                "garenne_redeliveries_total",
                "Deliveries with the redelivered flag.",
                lane,
            ),
            settlements: new.counters(
                "garenne_settlements_total",
                "Deliveries, by settlement.",
                &["lane", "settlement"],
            ),
            wait: new.histograms(
                "garenne_task_wait_seconds",
                "Time from delivery to the start of the task.",
                lane,
                WAITS,
            ),
            lost: new.gauges(
                "garenne_lost_deliveries",
                "Unsettled deliveries of channels that have ended: the broker delivers them again.",
                lane,
            ),
            queue_length: new.gauges(
                "garenne_pool_queue_length",
                "Tasks delivered and not yet settled: queued, running and settling.",
                lane,
            ),
            queue_capacity: new.gauges(
                "garenne_pool_queue_capacity",
                "Limit of tasks delivered and not yet settled: the lane's prefetch.",
                lane,
            ),
            workers: new.gauges("garenne_pool_workers", "Pool workers, by state.", &["lane", "state"]),
            restarts: new.counters(
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
            lost: self.lost.with_label_values(&[lane]),
            queue_length: self.queue_length.with_label_values(&[lane]),
            queue_capacity: self.queue_capacity.with_label_values(&[lane]),
            workers_idle: workers("idle"),
            workers_busy: workers("busy"),
            workers_restarting: workers("restarting"),
            worker_restarts: self.restarts.with_label_values(&[lane]),
        }
    }
}

/// The metrics of one lane. Clones share the counters.
#[derive(Debug, Clone)]
pub struct LaneMetrics {
    /// `garenne_deliveries_total`
    pub deliveries: IntCounter,
    /// `garenne_redeliveries_total`; redeliveries are counted as deliveries as well.
    pub redeliveries: IntCounter,
    settlements: [IntCounter; Settlement::ALL.len()],
    /// `garenne_task_wait_seconds`
    pub wait: Histogram,
    /// `garenne_lost_deliveries`
    pub lost: IntGauge,
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

    /// Counts `count` deliveries with the same settlement in `garenne_settlements_total`.
    pub fn settled_many(&self, settlement: Settlement, count: u64) {
        self.settlements[settlement as usize].inc_by(count);
    }

    /// Number of deliveries not settled yet, as the broker counts them: without those of channels that have ended.
    pub fn held(&self) -> u64 {
        let lost = self.lost.get().max(0).unsigned_abs();
        self.deliveries.get().saturating_sub(self.settled_total()).saturating_sub(lost)
    }

    /// Number of settled deliveries so far.
    pub fn settled_total(&self) -> u64 {
        self.settlements.iter().map(IntCounter::get).sum()
    }

    /// Number of deliveries removed from the queue so far: succeeded, or copied to another queue.
    pub fn removed_total(&self) -> u64 {
        let settlements = [Settlement::Acked, Settlement::Retried, Settlement::Dead, Settlement::Quarantined];
        settlements.into_iter().map(|settlement| self.settlements[settlement as usize].get()).sum()
    }

    /// Observes the time from delivery to the start of the task.
    pub fn waited(&self, wait: Duration) {
        self.wait.observe(wait.as_secs_f64());
    }
}
