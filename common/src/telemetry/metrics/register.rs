//! Registers metrics. Names are constants: an invalid or duplicate one fails every start, hence the panics.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    core::Collector,
    proto::{Counter, Gauge},
};

use super::panics::Panics;

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

/// Makes metrics that a registry exports.
#[derive(Debug)]
pub struct NewMetrics<'r>(
    /// The registry.
    pub &'r Registry,
);

impl NewMetrics<'_> {
    fn registered<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let collector = made.expect("the metric's name and labels are valid");
        self.0.register(Box::new(collector.clone())).expect("each metric is registered once");
        collector
    }

    /// Counters, one for each combination of values of the labels.
    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Gauges, one for each combination of values of the labels.
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.registered(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.registered(IntGauge::new(name, help))
    }

    pub(super) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        self.registered(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> HistogramVec {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.registered(HistogramVec::new(opts, labels))
    }

    /// `garenne_build_info`: version and role as labels of a constant 1.
    pub(super) fn build_info(&self, role: &str) {
        let help = "Version and role, as labels of a constant 1.";
        let info = self.gauges("garenne_build_info", help, &["version", "role"]);
        info.with_label_values(&[env!("CARGO_PKG_VERSION"), role]).set(1);
    }

    /// `garenne_background_panics_total`.
    pub(super) fn panics(&self) {
        self.0.register(Box::new(Panics::new())).expect("each metric is registered once");
    }

    /// The `process_…` metrics.
    #[cfg(all(target_os = "linux", feature = "admin"))]
    pub(super) fn process(&self) {
        self.0
            .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
            .expect("the process collector is registered once");
    }
}

/// The value of a counter or a gauge that was collected. The library `prometheus` calls it `value` with its feature `protobuf`,
/// which any other crate of a program may enable, and `get_value` without it. Of these two methods here, one calls what the
/// library has, and so does the other through it.
#[expect(dead_code, reason = "which of them is called depends on the feature")]
trait Value {
    fn value(&self) -> f64;
    fn get_value(&self) -> f64;
}

macro_rules! value {
    ($($collected:ty),+) => {
        $(impl Value for $collected {
            fn value(&self) -> f64 {
                self.get_value()
            }

            fn get_value(&self) -> f64 {
                self.value()
            }
        })+
    };
}
value!(Counter, Gauge);

/// The series of a family: label values, sorted by label name, and the counter's or gauge's value.
pub(super) fn series(family: &impl Collector) -> Vec<(Vec<String>, f64)> {
    let mut all = Vec::new();
    for family in family.collect() {
        for metric in family.get_metric() {
            let labels = metric.get_label().iter().map(|label| label.value().to_owned()).collect();
            // With the feature `protobuf`, each stands in a type that is dereferenced to it.
            let (counter, gauge): (&Counter, &Gauge) = (metric.get_counter(), metric.get_gauge());
            all.push((labels, counter.value() + gauge.value()));
        }
    }
    all
}
