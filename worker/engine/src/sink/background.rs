//! The background work of sinks, and what it is given.

use std::sync::Arc;

use futures_util::{FutureExt, future::join_all};
use garenne_common::supervise::{self, TaskHandle};
use tokio_util::sync::CancellationToken;

use super::{Sink, health::Health};
use crate::task_publisher::TaskPublisher;

/// Whether the worker consumes the queues of all its lanes, and none of its lanes and kinds is paused.
pub(crate) type IsConsuming = Arc<dyn Fn() -> bool + Send + Sync>;

/// Whether operators have paused a lane.
pub(crate) type IsLanePaused = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The context of the [background work](Sink::background) of a sink. Cheap to clone.
#[derive(Clone)]
pub struct SinkContext {
    publisher: TaskPublisher,
    health: Health,
    is_consuming: IsConsuming,
    is_lane_paused: IsLanePaused,
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
        (self.is_consuming)() && self.health.is_storing()
    }

    /// Whether operators have paused the lane that takes tasks of this kind, so that they wait in its queue.
    pub fn is_lane_paused_for(&self, kind: &str) -> bool {
        self.publisher.lane_for(kind).is_some_and(|lane| (self.is_lane_paused)(lane))
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
    /// Starts the work of these sinks. It ends at the latest when `force_close` is cancelled.
    pub(super) fn start<'a>(
        sinks: impl IntoIterator<Item = (&'a Arc<dyn Sink>, &'a Health)>,
        publisher: &TaskPublisher,
        is_consuming: &IsConsuming,
        is_lane_paused: &IsLanePaused,
        force_close: &CancellationToken,
    ) -> Self {
        let stopping = CancellationToken::new();
        let start = |(sink, health): (&Arc<dyn Sink>, &Health)| {
            let context = SinkContext {
                publisher: publisher.clone(),
                health: health.clone(),
                is_consuming: Arc::clone(is_consuming),
                is_lane_paused: Arc::clone(is_lane_paused),
                stopping: stopping.clone(),
            };
            let state = (Arc::clone(sink), context, force_close.clone());
            supervise::restarting("sink-background", state, |(sink, context, force_close)| {
                force_close.run_until_cancelled(sink.background(context)).map(drop).boxed()
            })
            .spawn()
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
