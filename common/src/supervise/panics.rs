//! Counts the panics of this process's own tasks and threads.

use std::sync::LazyLock;

use prometheus::{IntCounterVec, Opts, Registry};

/// One counter for the process, so that no task needs a handle to it.
static PANICS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let opts = Opts::new(
        "garenne_background_panics_total",
        "Panics of this process's own background tasks and threads, not of handlers and sinks, by task.",
    );
    IntCounterVec::new(opts, &["task"]).expect("the metric's name and labels are valid")
});

/// Exports `garenne_background_panics_total` in `registry`. Programs without metrics need not call it.
///
/// # Panics
/// The registry has the metric already.
pub fn export_panics(registry: &Registry) {
    registry.register(Box::new(PANICS.clone())).expect("each metric is registered once");
}

/// Counts a panic that was caught elsewhere.
pub fn count_panic(task: &'static str) {
    PANICS.with_label_values(&[task]).inc();
}

/// Number of panics of `task` in this process so far.
#[must_use]
pub fn panics_of(task: &'static str) -> u64 {
    PANICS.with_label_values(&[task]).get()
}
