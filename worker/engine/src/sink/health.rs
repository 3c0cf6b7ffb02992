//! Whether sinks are available, for metrics and readiness.

use prometheus::{
    IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, register_int_counter_vec_with_registry,
    register_int_gauge_vec_with_registry,
};
use tokio::sync::watch;

/// The metrics of all sinks of a worker.
pub(crate) struct SinkMetrics {
    up: IntGaugeVec,
    panics: IntCounterVec,
}

impl SinkMetrics {
    /// Registers the metrics. Must be called once per registry.
    pub(crate) fn register(registry: &Registry) -> Self {
        let (up, up_help) = ("garenne_sink_up", "1 while the sink takes results.");
        let (panics, panics_help) = ("garenne_sink_panics_total", "Panics while results were written.");
        let up = register_int_gauge_vec_with_registry!(up, up_help, &["sink"], registry);
        let panics = register_int_counter_vec_with_registry!(panics, panics_help, &["sink"], registry);
        Self {
            up: up.expect("each metric is registered once"),
            panics: panics.expect("each metric is registered once"),
        }
    }

    /// The health of a sink. It counts as up until a write fails.
    pub(super) fn health(&self, sink: &'static str) -> Health {
        let up = self.up.with_label_values(&[sink]);
        up.set(1);
        Health { sink, up, panics: self.panics.with_label_values(&[sink]), problem: watch::Sender::new(None) }
    }
}

/// The health of one sink. A clone refers to the same sink.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) sink: &'static str,
    up: IntGauge,
    panics: IntCounter,
    /// Why the last write failed; [`None`] if it succeeded.
    problem: watch::Sender<Option<String>>,
}

impl Health {
    /// Records a successful write.
    pub(super) fn write_succeeded(&self) {
        if self.problem.send_replace(None).is_some() {
            self.up.set(1);
            tracing::info!(sink = self.sink, "sink available again");
        }
    }

    /// Records a failed write, or one that takes too long.
    pub(super) fn write_failed(&self, problem: &str) {
        self.problem.send_replace(Some(problem.to_owned()));
        self.up.set(0);
    }

    pub(super) fn count_panic(&self) {
        self.panics.inc();
    }

    /// Whether the last write failed.
    pub(super) fn is_down(&self) -> bool {
        self.problem.borrow().is_some()
    }

    /// Why the sink is down; [`None`] while it is up.
    pub(super) fn problem(&self) -> Option<String> {
        let problem = self.problem.borrow();
        problem.as_ref().map(|problem| format!("sink {} takes no results: {problem}", self.sink))
    }
}
