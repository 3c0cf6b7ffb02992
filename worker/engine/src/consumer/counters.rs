//! Counters for the deliveries of a lane.

use std::sync::Arc;

use garenne_common::{
    shutdown::{Settlement, Tally},
    telemetry::metrics::LaneMetrics,
};

/// Counts deliveries and settlements in the shutdown receipt and in the metrics, so that both agree.
#[derive(Clone)]
pub(crate) struct SettlementCounters {
    pub(crate) tally: Arc<Tally>,
    pub(crate) lane: LaneMetrics,
}

impl SettlementCounters {
    pub(super) fn delivered(&self, redelivered: bool) {
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
