//! Making metrics. Names are constants of this crate: a bad or double one is a mistake that every
//! start shows, hence the panics.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// The bounds of a task's duration, from the shortest worth measuring to the longest that a deadline lets
/// run; in seconds.
pub const DURATIONS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
];

/// From an idle pool to the broker's default consumer timeout of 30 minutes; in seconds.
pub(super) const WAITS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
];

/// From a loopback broker to the longest a publisher waits; in seconds.
pub(super) const CONFIRMS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

fn registered<C: Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<C>) -> C {
    let collector = made.expect("the metric's name and labels are valid");
    registry.register(Box::new(collector.clone())).expect("each metric is registered once");
    collector
}

pub(super) fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

pub(super) fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    registered(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

pub(super) fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    registered(registry, IntGauge::new(name, help))
}

pub(super) fn histogram(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> Histogram {
    let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    registered(registry, Histogram::with_opts(opts))
}

pub(super) fn histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    buckets: &[f64],
) -> HistogramVec {
    let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    registered(registry, HistogramVec::new(opts, labels))
}

/// `garenne_build_info`, always 1: what runs here is in the labels.
pub(super) fn build_info(registry: &Registry, role: &str) {
    let info = gauges(
        registry,
        "garenne_build_info",
        "What runs here, in the labels; the value is always 1.",
        &["version", "role"],
    );
    info.with_label_values(&[env!("CARGO_PKG_VERSION"), role]).set(1);
}

/// The `process_…` metrics, where the platform has them.
pub(super) fn process(registry: &Registry) {
    #[cfg(target_os = "linux")]
    registry
        .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
        .expect("the process collector is registered once");
    #[cfg(not(target_os = "linux"))]
    let _ = registry;
}

/// Every series of a family: its labels' values in the order of their names, and its value.
pub(super) fn series(family: &impl Collector) -> Vec<(Vec<String>, f64)> {
    let mut all = Vec::new();
    for family in family.collect() {
        for metric in family.get_metric() {
            let labels = metric.get_label().iter().map(|label| label.value().to_owned()).collect();
            all.push((labels, metric.get_counter().get_value() + metric.get_gauge().get_value()));
        }
    }
    all
}
