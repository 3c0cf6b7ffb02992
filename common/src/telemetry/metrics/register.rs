//! Registers metrics. Names are constants of this crate: an invalid or duplicate one fails every start, hence the
//! panics.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// Histogram buckets of a task's duration, in seconds, up to the longest usual deadline.
pub const DURATIONS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
];

/// Histogram buckets of the wait for a pool worker, in seconds, up to the broker's default consumer timeout of 30
/// min.
pub(super) const WAITS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
];

/// Histogram buckets of the time until a confirm, in seconds, from a loopback broker to a publisher's timeout.
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

/// `garenne_build_info`: version and role as labels of a constant 1.
pub(super) fn build_info(registry: &Registry, role: &str) {
    let info = gauges(
        registry,
        "garenne_build_info",
        "Version and role, as labels of a constant 1.",
        &["version", "role"],
    );
    info.with_label_values(&[env!("CARGO_PKG_VERSION"), role]).set(1);
}

/// The `process_…` metrics, on Linux only.
pub(super) fn process(registry: &Registry) {
    #[cfg(target_os = "linux")]
    registry
        .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
        .expect("the process collector is registered once");
    #[cfg(not(target_os = "linux"))]
    let _ = registry;
}

/// The series of a family: label values, sorted by label name, and the counter's or gauge's value.
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
