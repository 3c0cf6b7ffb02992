//! Metrics of the queues and the lanes, which only the console exports.

use std::sync::Arc;

use garenne_common::telemetry::Metrics;
use prometheus::{
    IntCounterVec, register_gauge_vec_with_registry, register_int_counter_vec_with_registry,
    register_int_counter_with_registry, register_int_gauge_vec_with_registry,
};

use crate::monitor::FleetMonitor;

/// Registers the counter of logins, with the label `result`.
pub(super) fn logins(metrics: &Metrics) -> prometheus::Result<IntCounterVec> {
    let help =
        "Logins to the dashboard by result: success, wrong, limited (the address failed too often), busy.";
    register_int_counter_vec_with_registry!(
        "garenne_dashboard_logins_total",
        help,
        &["result"],
        metrics.registry()
    )
}

/// Registers the metrics of the fleet. They are read at each scrape. While the queues cannot be read they are
/// absent, so that an alert on absence fires.
pub(super) fn register(metrics: &Metrics, monitor: &Arc<FleetMonitor>) -> prometheus::Result<()> {
    let registry = metrics.registry();
    let help = "Messages in a queue, as the broker reports them.";
    let messages =
        register_int_gauge_vec_with_registry!("garenne_queue_messages", help, &["queue", "state"], registry)?;
    let help = "Consumers of a queue.";
    let consumers =
        register_int_gauge_vec_with_registry!("garenne_queue_consumers", help, &["queue"], registry)?;
    let help = "Time for the fleet to work off the lane's backlog; +Inf if no worker has slots for it.";
    let backlog = register_gauge_vec_with_registry!("garenne_backlog_seconds", help, &["lane"], registry)?;
    let help = "Messages that no binding matched.";
    let unroutable = register_int_counter_with_registry!("garenne_unroutable_total", help, registry)?;
    let help = "Problems of the fleet that the dashboard sees: 1 for each.";
    let problems = register_int_gauge_vec_with_registry!(
        "garenne_problems",
        help,
        &["problem", "severity", "subject"],
        registry
    )?;
    let monitor = Arc::clone(monitor);
    metrics.before_encode(move || {
        problems.reset();
        for problem in monitor.problems().unwrap_or_default() {
            let severity: &str = problem.severity.into();
            let code: &str = problem.problem.into();
            problems.with_label_values(&[code, severity, &problem.subject]).set(1);
        }
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
        let is_heard = monitor.is_heard();
        for (lane, sample) in &sample.lanes {
            // Without the management API the workers report unacknowledged messages by lane. All of them are
            // attributed to the lane's first queue.
            let name = monitor.operator.names.lane(lane);
            if queues.get(&name).is_none_or(|queue| queue.unacked.is_none()) {
                messages.with_label_values(&[name.as_str(), "unacked"]).set(gauge(sample.unacked));
            }
            if let Some(seconds) = sample.load.backlog_seconds.filter(|_| is_heard) {
                backlog.with_label_values(&[lane]).set(seconds);
            }
        }
    });
    Ok(())
}
