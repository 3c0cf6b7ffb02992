//! Whether sinks take results, for metrics and readiness.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// The families that sinks' metrics belong to.
pub(crate) struct SinkMetrics {
    up: IntGaugeVec,
    panics: IntCounterVec,
}

impl SinkMetrics {
    /// Once for each registry.
    pub(crate) fn register(registry: &Registry) -> Self {
        let up = Opts::new("garenne_sink_up", "1 while the sink takes results.");
        let panics = Opts::new("garenne_sink_panics_total", "Panics while results were written.");
        let up = IntGaugeVec::new(up, &["sink"]).expect("the metric's name and labels are valid");
        let panics = IntCounterVec::new(panics, &["sink"]).expect("the metric's name and labels are valid");
        registry.register(Box::new(up.clone())).expect("each metric is registered once");
        registry.register(Box::new(panics.clone())).expect("each metric is registered once");
        Self { up, panics }
    }

    /// A sink's health; it counts as up until a write fails.
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

/// One sink's health; a clone is another handle to the same.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) sink: &'static str,
    up: IntGauge,
    panics: IntCounter,
    /// What keeps it from taking results.
    problem: Arc<Mutex<Option<String>>>,
}

impl Health {
    /// It took a batch.
    pub(super) fn took(&self) {
        if self.problem.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            self.up.set(1);
            tracing::info!(sink = self.sink, "the sink takes results again");
        }
    }

    /// It took none.
    pub(super) fn failed(&self, problem: &str) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem.to_owned());
        self.up.set(0);
    }

    pub(super) fn panicked(&self) {
        self.panics.inc();
    }

    /// Whether it took none, the last time.
    pub(super) fn is_down(&self) -> bool {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Why it takes no results, for an operator.
    pub(super) fn problem(&self) -> Option<String> {
        let problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        problem.as_ref().map(|problem| format!("sink {} takes no results: {problem}", self.sink))
    }
}
