//! What the background work of sinks can know of its worker.

use std::sync::Arc;

use futures_util::{FutureExt, future::BoxFuture};
use garenne_common::telemetry::Metrics;
use garenne_protocol::topology::Names;
use tokio::sync::watch;

use crate::{
    consumer::{ConsumeBroker, Intake, ready_messages},
    fleet::Directives,
    sink::{LaneFigures, WorkerState},
    status::LaneStatus,
};

/// The lanes of a worker that consumes.
pub(super) struct LaneStates<B> {
    pub(super) broker: B,
    pub(super) lanes: Vec<LaneStatus>,
    pub(super) kinds: Vec<String>,
    pub(super) metrics: Metrics,
    pub(super) directives: Arc<Directives>,
    pub(super) intake: watch::Receiver<Intake>,
}

impl<B: ConsumeBroker> WorkerState for LaneStates<B> {
    fn is_consuming(&self) -> bool {
        *self.intake.borrow() == Intake::Open
            && self.lanes.iter().flat_map(|lane| &lane.queues).all(|queue| queue.problem.borrow().is_none())
            && !self.lanes.iter().any(|lane| self.directives.is_lane_paused(&lane.name))
            && !self.kinds.iter().any(|kind| self.directives.is_kind_paused(kind))
    }

    fn is_lane_paused(&self, lane: &str) -> bool {
        self.directives.is_lane_paused(lane)
    }

    fn lanes(&self) -> Vec<LaneFigures> {
        let lanes = self.lanes.iter().filter(|lane| *lane.name != *Names::QUARANTINE);
        let figures = |lane: &LaneStatus| {
            let (workers, counted) = (lane.pool.snapshot().workers, self.metrics.lane(&lane.name));
            LaneFigures {
                lane: Arc::clone(&lane.name),
                slots: workers.max,
                busy: workers.busy,
                held: counted.held(),
                settled: counted.removed_total(),
            }
        };
        lanes.map(figures).collect()
    }

    fn backlog<'a>(&'a self, lane: &'a str) -> BoxFuture<'a, Option<u64>> {
        async move {
            let lane = self.lanes.iter().find(|it| *it.name == *lane)?;
            let mut sum = 0;
            for queue in &lane.queues {
                sum += u64::from(ready_messages(&self.broker, &queue.name).await?);
            }
            Some(sum)
        }
        .boxed()
    }
}
