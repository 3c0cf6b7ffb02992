//! What runs beside the handlers.

use std::{sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use garenne_common::{
    supervise::{self, TaskHandle},
    telemetry::Metrics,
};
use prometheus::Registry;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::handler_runtime::HandlerRuntime;

/// What a companion of a worker gets. See [`WorkerBuilder::companion`](super::WorkerBuilder::companion).
#[derive(Clone)]
#[non_exhaustive]
pub struct Companion {
    /// Cancelled when all tasks of the worker have ended.
    pub stopping: CancellationToken,
    /// The registry of the worker's metrics.
    pub registry: Registry,
}

pub(super) type RunCompanion = Arc<dyn Fn(Companion) -> BoxFuture<'static, ()> + Send + Sync>;

/// The companions of a running worker.
#[derive(Default)]
pub(super) struct Companions {
    stopping: CancellationToken,
    running: Vec<TaskHandle<()>>,
}

impl Companions {
    pub(super) fn start(run: &[RunCompanion], metrics: &Metrics, runtime: &HandlerRuntime) -> Self {
        let stopping = CancellationToken::new();
        let companion = Companion { stopping: stopping.clone(), registry: metrics.registry().clone() };
        let running = run
            .iter()
            .map(|run| supervise::isolated("companion", run(companion.clone())).spawn_on(&runtime.handle()));
        Self { running: running.collect(), stopping }
    }

    /// Tells them to stop, and waits for at most `grace`.
    pub(super) async fn stop(self, grace: Duration) {
        self.stopping.cancel();
        if timeout(grace, join_all(self.running)).await.is_err() {
            tracing::warn!(?grace, "what runs beside the handlers did not stop in time");
        }
    }
}
