//! What only the console can count: the queues, and how far the lanes are behind.

use std::sync::Arc;

use garenne_common::telemetry::Metrics;
use prometheus::{GaugeVec, IntCounter, IntGaugeVec, Opts};

use crate::scope::Scope;

/// Adds the fleet's metrics; they are looked up at each scrape and absent while the queues cannot be
/// seen, so that an alert on their absence tells of it.
pub(super) fn register(metrics: &Metrics, scope: &Arc<Scope>) {
    let opts = |name: &str, help: &str| Opts::new(name, help);
    let valid = "the metric's name and labels are valid";
    let messages = opts("garenne_queue_messages", "Messages in a queue, by the broker.");
    let messages = IntGaugeVec::new(messages, &["queue", "state"]).expect(valid);
    let consumers = opts("garenne_queue_consumers", "Consumers of a queue.");
    let consumers = IntGaugeVec::new(consumers, &["queue"]).expect(valid);
    let backlog = opts(
        "garenne_backlog_seconds",
        "How long the fleet's slots take for what is in the lane; +Inf where nobody works on it.",
    );
    let backlog = GaugeVec::new(backlog, &["lane"]).expect(valid);
    let unroutable = IntCounter::new("garenne_unroutable_total", "Messages that no lane took.").expect(valid);
    let registry = metrics.registry();
    let once = "each metric is registered once";
    registry.register(Box::new(messages.clone())).expect(once);
    registry.register(Box::new(consumers.clone())).expect(once);
    registry.register(Box::new(backlog.clone())).expect(once);
    registry.register(Box::new(unroutable.clone())).expect(once);
    let scope = Arc::clone(scope);
    metrics.before_encode(move || {
        messages.reset();
        consumers.reset();
        backlog.reset();
        unroutable.inc_by(scope.unroutable().saturating_sub(unroutable.get()));
        let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let (Ok(sample), Some(queues)) = (scope.fresh(), scope.queues()) else { return };
        for (name, queue) in &queues {
            messages.with_label_values(&[name.as_str(), "ready"]).set(gauge(queue.ready));
            if let Some(unacked) = queue.unacked {
                messages.with_label_values(&[name.as_str(), "unacked"]).set(gauge(unacked));
            }
            consumers.with_label_values(&[name]).set(gauge(queue.consumers));
        }
        for (lane, sample) in &sample.lanes {
            // By the workers where the broker was not asked: they know the lane and not the queue, so all of
            // it stands at the first.
            let name = scope.operator.names.lane(lane);
            if queues.get(&name).is_none_or(|queue| queue.unacked.is_none()) {
                messages.with_label_values(&[name.as_str(), "unacked"]).set(gauge(sample.unacked));
            }
            if let Some(seconds) = sample.backlog_seconds {
                backlog.with_label_values(&[lane]).set(seconds);
            }
        }
    });
}
