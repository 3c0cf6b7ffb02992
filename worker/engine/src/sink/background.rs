//! The background work of sinks, and what it is given.

use std::sync::Arc;

use futures_util::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use garenne_common::supervise::{self, TaskHandle};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{Sink, health::Health};
use crate::task_publisher::TaskPublisher;

/// What the background work of sinks can know of its worker.
pub(crate) trait WorkerState: Send + Sync {
    /// Whether the worker consumes the queues of all its lanes, and none of its lanes and kinds is paused.
    fn is_consuming(&self) -> bool;

    /// Whether operators have paused a lane.
    fn is_lane_paused(&self, lane: &str) -> bool;

    /// The figures of each lane.
    fn lanes(&self) -> Vec<LaneFigures>;

    /// The ready messages in the queues of a lane; [`None`] if the broker does not tell.
    fn backlog<'a>(&'a self, lane: &'a str) -> BoxFuture<'a, Option<u64>>;
}

/// The present figures of a lane in one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneFigures {
    /// The lane's name.
    pub lane: Arc<str>,
    /// The maximum number of tasks that run at once.
    pub slots: usize,
    /// Slots that run a task.
    pub busy: usize,
    /// Deliveries that are not settled: tasks that wait or run, or whose settlement is not sent yet.
    pub held: u64,
    /// Deliveries removed from the lane's queues since the worker started: acked after the task succeeded or a copy of it
    /// was confirmed.
    pub settled: u64,
}

impl LaneFigures {
    /// The figures of a lane, for tests of sinks.
    pub fn new(lane: &str, slots: usize, busy: usize, held: u64, settled: u64) -> Self {
        Self { lane: lane.into(), slots, busy, held, settled }
    }
}

/// The context of the [background work](Sink::background) of a sink. Cheap to clone.
#[derive(Clone)]
pub struct SinkContext {
    publisher: TaskPublisher,
    health: Health,
    worker: Arc<dyn WorkerState>,
    stopping: CancellationToken,
}

impl SinkContext {
    /// Publishes tasks.
    pub fn publisher(&self) -> &TaskPublisher {
        &self.publisher
    }

    /// Whether results reach the sink: the worker consumes the queues of all its lanes, none of its lanes and kinds is
    /// paused, the sink's last write succeeded, and the present one does not take unusually long.
    pub fn is_receiving(&self) -> bool {
        self.worker.is_consuming() && self.health.is_storing()
    }

    /// Whether operators have paused the lane that takes tasks of this kind, so that they wait in its queue.
    pub fn is_lane_paused_for(&self, kind: &str) -> bool {
        self.publisher.lane_for(kind).is_some_and(|lane| self.worker.is_lane_paused(lane))
    }

    /// The present figures of the worker's lanes, without the quarantine.
    pub fn lanes(&self) -> Vec<LaneFigures> {
        self.worker.lanes()
    }

    /// The messages that wait in the queues of a lane for any worker of the fleet. [`None`] if the worker does not consume the
    /// lane, or the broker does not tell. Asks the broker, which may take as long as a connection is opened.
    pub async fn backlog(&self, lane: &str) -> Option<u64> {
        self.worker.backlog(lane).await
    }

    /// Completes when the worker stops and the sink has stored the last result. The work should then finish what is
    /// quickly done, and end.
    pub async fn stopping(&self) {
        self.stopping.cancelled().await;
    }

    /// Whether [`stopping`](Self::stopping) has completed.
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Records that a part of the work succeeds.
    pub fn succeeded(&self, part: &'static str) {
        self.health.succeeded(part);
    }

    /// Records that a part of the work fails. Readiness, metrics and heartbeats show it until the part
    /// [succeeds](Self::succeeded).
    pub fn failed(&self, part: &'static str, problem: &str) {
        self.health.failed(part, problem);
    }

    /// Records how much a part has set aside because it fails, while the part itself succeeds. A metric shows it.
    pub fn set_aside(&self, part: &'static str, count: usize) {
        self.health.set_aside(part, count);
    }
}

/// The running background work of a worker's sinks.
pub(crate) struct BackgroundWork {
    tasks: Vec<TaskHandle<()>>,
    stopping: CancellationToken,
}

impl BackgroundWork {
    /// Starts the work of these sinks on `runtime`. It ends at the latest when `force_close` is cancelled.
    pub(super) fn start<'a>(
        sinks: impl IntoIterator<Item = (&'a Arc<dyn Sink>, &'a Health)>,
        publisher: &TaskPublisher,
        worker: &Arc<dyn WorkerState>,
        force_close: &CancellationToken,
        runtime: &Handle,
    ) -> Self {
        let stopping = CancellationToken::new();
        let start = |(sink, health): (&Arc<dyn Sink>, &Health)| {
            let context = SinkContext {
                publisher: publisher.clone(),
                health: health.clone(),
                worker: Arc::clone(worker),
                stopping: stopping.clone(),
            };
            let state = (Arc::clone(sink), context, force_close.clone());
            supervise::restarting("sink-background", state, |(sink, context, force_close)| {
                force_close.run_until_cancelled(sink.background(context)).map(drop).boxed()
            })
            .spawn_on(runtime)
        };
        Self { tasks: sinks.into_iter().map(start).collect(), stopping }
    }

    /// Tells the work that all results are stored, and waits until it has ended.
    pub(crate) async fn stop(&mut self) {
        self.stopping.cancel();
        join_all(&mut self.tasks).await;
    }
}

#[cfg(test)]
mod tests;
