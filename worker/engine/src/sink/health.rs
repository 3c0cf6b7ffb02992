//! Whether sinks are available, for metrics and readiness.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// The metrics of all sinks of a worker.
pub(crate) struct SinkMetrics {
    up: IntGaugeVec,
    panics: IntCounterVec,
}

impl SinkMetrics {
    /// Registers the metrics. Must be called once per registry.
    pub(crate) fn register(registry: &Registry) -> Self {
        let up = Opts::new("garenne_sink_up", "1 while the sink takes results.");
        let panics = Opts::new("garenne_sink_panics_total", "Panics while results were written.");
        let up = IntGaugeVec::new(up, &["sink"]).expect("the metric's name and labels are valid");
        let panics = IntCounterVec::new(panics, &["sink"]).expect("the metric's name and labels are valid");
        registry.register(Box::new(up.clone())).expect("each metric is registered once");
        registry.register(Box::new(panics.clone())).expect("each metric is registered once");
        Self { up, panics }
    }

    /// The health of a sink. It counts as up until a write fails.
    pub(super) fn health(&self, sink: &'static str) -> Health {
        let health = Health {
            sink,
            up: self.up.with_label_values(&[sink]),
            panics: self.panics.with_label_values(&[sink]),
            problem: Arc::default(),
        };
        health.up.set(1);
        health
    }
}

/// The health of one sink. A clone refers to the same sink.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) sink: &'static str,
    up: IntGauge,
    panics: IntCounter,
    /// Why the last write failed; [`None`] if it succeeded.
    problem: Arc<Mutex<Option<String>>>,
}

impl Health {
    /// Records a successful write.
    pub(super) fn write_succeeded(&self) {
        if self.problem_slot().take().is_some() {
            self.up.set(1);
            tracing::info!(sink = self.sink, "sink available again");
        }
    }

    /// Records a failed write, or one that takes too long.
    pub(super) fn write_failed(&self, problem: &str) {
        *self.problem_slot() = Some(problem.to_owned());
        self.up.set(0);
    }

    pub(super) fn count_panic(&self) {
        self.panics.inc();
    }

    /// Whether the last write failed.
    pub(super) fn is_down(&self) -> bool {
        self.problem_slot().is_some()
    }

    /// Why the sink is down; [`None`] while it is up.
    pub(super) fn problem(&self) -> Option<String> {
        let problem = self.problem_slot();
        problem.as_ref().map(|problem| format!("sink {} takes no results: {problem}", self.sink))
    }

    fn problem_slot(&self) -> MutexGuard<'_, Option<String>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
