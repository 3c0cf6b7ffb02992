//! Metrics of the queues and the lanes, which only the console exports.

use std::sync::Arc;

use garenne_common::telemetry::Metrics;
use prometheus::{GaugeVec, IntCounter, IntGaugeVec, Opts};

use crate::monitor::FleetMonitor;

/// Registers the metrics of the fleet. They are read at each scrape. While the queues cannot be read they are
/// absent, so that an alert on absence fires.
pub(super) fn register(metrics: &Metrics, monitor: &Arc<FleetMonitor>) {
    let (valid, once) = ("the metric's name and labels are valid", "each metric is registered once");
    let registry = metrics.registry();
    let gauges = |name: &str, help: &str, labels: &[&str]| {
        let gauges = IntGaugeVec::new(Opts::new(name, help), labels).expect(valid);
        registry.register(Box::new(gauges.clone())).expect(once);
        gauges
    };
    let messages = gauges(
        "garenne_queue_messages",
        "Messages in a queue, as the broker reports them.",
        &["queue", "state"],
    );
    let consumers = gauges("garenne_queue_consumers", "Consumers of a queue.", &["queue"]);
    let backlog = Opts::new(
        "garenne_backlog_seconds",
        "Time for the fleet to work off the lane's backlog; +Inf if no worker has slots for it.",
    );
    let backlog = GaugeVec::new(backlog, &["lane"]).expect(valid);
    let unroutable =
        IntCounter::new("garenne_unroutable_total", "Messages that no binding matched.").expect(valid);
    registry.register(Box::new(backlog.clone())).expect(once);
    registry.register(Box::new(unroutable.clone())).expect(once);
    let monitor = Arc::clone(monitor);
    metrics.before_encode(move || {
        messages.reset();
        consumers.reset();
        backlog.reset();
        unroutable.inc_by(monitor.unroutable().saturating_sub(unroutable.get()));
        let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let (Ok(sample), Some(queues)) = (monitor.latest(), monitor.queues()) else { return };
        for (name, queue) in &queues {
            messages.with_label_values(&[name.as_str(), "ready"]).set(gauge(queue.ready));
            if let Some(unacked) = queue.unacked {
                messages.with_label_values(&[name.as_str(), "unacked"]).set(gauge(unacked));
            }
            consumers.with_label_values(&[name]).set(gauge(queue.consumers));
        }
        for (lane, sample) in &sample.lanes {
            // Without the management API the workers report unacknowledged messages by lane. All of them are
            // attributed to the lane's first queue.
            let name = monitor.operator.names.lane(lane);
            if queues.get(&name).is_none_or(|queue| queue.unacked.is_none()) {
                messages.with_label_values(&[name.as_str(), "unacked"]).set(gauge(sample.unacked));
            }
            if let Some(seconds) = sample.backlog_seconds {
                backlog.with_label_values(&[lane]).set(seconds);
            }
        }
    });
}
