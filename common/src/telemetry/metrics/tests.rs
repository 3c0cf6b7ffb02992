use std::collections::BTreeMap;
use std::time::Duration;

use garenne_protocol::{settlement::Settlement, task::DeadReason};

use super::*;
use crate::{
    connection::{ConnectionObserver, Role},
    supervise,
};

/// The encoded series and their values.
fn scrape(metrics: &Metrics) -> BTreeMap<String, f64> {
    let text = metrics.encode();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// Type and label names, without `le`, by family name.
fn families(metrics: &Metrics) -> BTreeMap<String, (String, Vec<String>)> {
    let gathered = metrics.registry().gather();
    gathered
        .iter()
        .map(|family| {
            let labels = family.get_metric()[0].get_label().iter().map(|label| label.name().to_owned());
            (
                family.name().to_owned(),
                (format!("{:?}", family.get_field_type()).to_lowercase(), labels.collect()),
            )
        })
        .collect()
}

#[test]
fn names_types_and_labels_are_the_documented_ones() {
    let metrics = Metrics::new("worker");
    metrics.lane("fast");
    metrics.register_kinds(["reading.process"]);
    metrics.kind("reading.process").dead(DeadReason::Rejected);
    metrics.connection().up(Role::Consume).set(1);
    metrics.connection().reconnects(Role::Publish);
    metrics.gateway().requests("http", "202").inc();
    metrics.gateway().connections("worker-pool", "open").set(1);
    supervise::count_panic("test metrics");
    let families = families(&metrics);
    for (name, kind, labels) in [
        ("garenne_build_info", "gauge", "role version"),
        ("garenne_deliveries_total", "counter", "lane"),
        ("garenne_redeliveries_total", "counter", "lane"),
        ("garenne_settlements_total", "counter", "lane settlement"),
        ("garenne_tasks_total", "counter", "kind outcome"),
        ("garenne_dead_total", "counter", "kind reason"),
        ("garenne_task_duration_seconds", "histogram", "kind"),
        ("garenne_task_wait_seconds", "histogram", "lane"),
        ("garenne_tasks_stuck", "gauge", ""),
        ("garenne_lost_deliveries", "gauge", "lane"),
        ("garenne_pool_queue_length", "gauge", "lane"),
        ("garenne_pool_queue_capacity", "gauge", "lane"),
        ("garenne_pool_workers", "gauge", "lane state"),
        ("garenne_pool_worker_restarts_total", "counter", "lane"),
        ("garenne_connection_up", "gauge", "role"),
        ("garenne_connection_blocked", "gauge", ""),
        ("garenne_reconnects_total", "counter", "role"),
        ("garenne_published_total", "counter", "result"),
        ("garenne_publish_confirm_seconds", "histogram", ""),
        ("garenne_gateway_requests_total", "counter", "protocol status"),
        ("garenne_gateway_connections", "gauge", "server state"),
        ("garenne_background_panics_total", "counter", "task"),
    ] {
        let (found_kind, found_labels) = families.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!((found_kind.as_str(), found_labels.join(" ").as_str()), (kind, labels), "{name}");
    }
    let own = families.keys().filter(|name| name.starts_with("garenne_")).count();
    assert_eq!(own, 22, "an undocumented metric: {:?}", families.keys());
    assert!(families.contains_key("process_resident_memory_bytes"));
}

#[test]
fn handles_count_in_their_series() {
    let metrics = Metrics::new("worker");
    let lane = metrics.lane("fast");
    lane.delivered(false);
    lane.delivered(true);
    lane.settled_many(Settlement::Acked, 1);
    lane.settled_many(Settlement::LostSettlement, 3);
    lane.waited(Duration::from_millis(20));
    metrics.register_kinds(["reading.process"]);
    let kind = metrics.kind("reading.process");
    kind.ended(TaskOutcome::Success, Duration::from_micros(200));
    kind.dead(DeadReason::AttemptsExhausted);
    let took = Duration::from_millis(2);
    metrics.connection().published(PublishResult::Confirmed, took);
    metrics.connection().published(PublishResult::Unconfirmed, took);
    let series = scrape(&metrics);
    for (name, value) in [
        (r#"garenne_deliveries_total{lane="fast"}"#, 2.0),
        (r#"garenne_redeliveries_total{lane="fast"}"#, 1.0),
        (r#"garenne_settlements_total{lane="fast",settlement="acked"}"#, 1.0),
        (r#"garenne_settlements_total{lane="fast",settlement="lost_settlements"}"#, 3.0),
        (r#"garenne_settlements_total{lane="fast",settlement="dead"}"#, 0.0),
        (r#"garenne_task_wait_seconds_bucket{lane="fast",le="0.01"}"#, 0.0),
        (r#"garenne_task_wait_seconds_bucket{lane="fast",le="0.025"}"#, 1.0),
        (r#"garenne_tasks_total{kind="reading.process",outcome="success"}"#, 1.0),
        (r#"garenne_task_duration_seconds_bucket{kind="reading.process",le="0.0001"}"#, 0.0),
        (r#"garenne_task_duration_seconds_bucket{kind="reading.process",le="0.00025"}"#, 1.0),
        (r#"garenne_dead_total{kind="reading.process",reason="attempts-exhausted"}"#, 1.0),
        (r#"garenne_published_total{result="confirmed"}"#, 1.0),
        (r#"garenne_published_total{result="unconfirmed"}"#, 1.0),
        (r#"garenne_publish_confirm_seconds_count"#, 1.0),
    ] {
        assert_eq!(series.get(name), Some(&value), "{name}");
    }
}

#[test]
fn unregistered_kinds_share_one_label() {
    let metrics = Metrics::new("worker");
    for n in 0..1000 {
        metrics.kind(&format!("made.up.{n}")).counted(TaskOutcome::Rejected);
    }
    let series = scrape(&metrics);
    assert_eq!(series[r#"garenne_tasks_total{kind="unknown",outcome="rejected"}"#], 1000.0);
    assert!(!series.keys().any(|name| name.contains("made.up")));
}

#[test]
fn panics_are_exported_by_task() {
    supervise::count_panic("test export");
    let series = scrape(&Metrics::new("worker"));
    assert_eq!(series[r#"garenne_background_panics_total{task="test export"}"#], 1.0);
}

#[test]
fn gauges_are_refreshed_before_each_encode() {
    let metrics = Metrics::new("worker");
    let stuck = metrics.tasks_stuck().clone();
    metrics.before_encode(move || stuck.inc());
    assert_eq!(scrape(&metrics)["garenne_tasks_stuck"], 1.0);
    assert_eq!(scrape(&metrics)["garenne_tasks_stuck"], 2.0);
}

#[test]
fn the_version_and_role_are_on_the_build_info() {
    let series = scrape(&Metrics::new("gateway"));
    let name = format!(r#"garenne_build_info{{role="gateway",version="{}"}}"#, env!("CARGO_PKG_VERSION"));
    assert_eq!(series[&name], 1.0);
}
