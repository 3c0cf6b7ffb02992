//! `garenne_background_panics_total`: the panics of this process's own tasks and threads.

use prometheus::{
    IntCounterVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::supervise;

/// Reads the counts of [`supervise`] when they are exported. The registries of one process share them.
pub(super) struct Panics(IntCounterVec);

impl Panics {
    pub(super) fn new() -> Self {
        Self(counters())
    }
}

impl Collector for Panics {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counted = counters();
        for (task, count) in supervise::panics() {
            counted.with_label_values(&[task]).inc_by(count);
        }
        counted.collect()
    }
}

fn counters() -> IntCounterVec {
    let opts = Opts::new(
        "garenne_background_panics_total",
        "Panics of this process's own background tasks and threads, not of handlers and sinks, by task.",
    );
    IntCounterVec::new(opts, &["task"]).expect("the metric's name and labels are valid")
}
