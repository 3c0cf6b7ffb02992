//! Prometheus metrics of workers and gateway, in one registry per process.
//!
//! Label values are bounded: lanes, roles and states by configuration, outcomes, settlements and reasons by their
//! types, kinds by registration ([`Metrics::register_kinds`]). Any other kind is counted as `unknown`, so that a
//! publisher cannot make the process grow.

mod connection;
mod gateway;
mod kind;
mod lane;
mod panics;
mod register;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use prometheus::{
    IntCounter, IntCounterVec, IntGauge, Registry, TextEncoder,
    proto::{LabelPair, MetricFamily},
};

use garenne_protocol::heartbeat::{ConnectionBeat, GatewayBeat, KindBeat};

pub use crate::connection::{PublishResult, Role};
pub use connection::ConnectionMetrics;
pub use gateway::GatewayMetrics;
pub use kind::{KindMetrics, TaskOutcome, UNKNOWN_KIND};
pub use lane::LaneMetrics;
pub use register::{DURATIONS, NewMetrics};

use kind::Kinds;
use lane::Lanes;

/// All metrics of one process. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

struct Inner {
    registry: Registry,
    lanes: Lanes,
    kinds: Kinds,
    connection: ConnectionMetrics,
    gateway: GatewayMetrics,
    stuck: IntGauge,
    unreadable: IntCounterVec,
    #[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "only the export of spans counts"))]
    spans: IntCounterVec,
    headers_ignored: IntCounterVec,
    records_refused: IntCounterVec,
    before_encode: RwLock<Vec<Box<dyn Fn() + Send + Sync>>>,
}

impl Metrics {
    /// The metrics of a process with this `role`, such as `worker` or `gateway`, at this crate's version.
    pub fn new(role: &str) -> Self {
        let registry = Registry::new();
        let new = NewMetrics(&registry);
        new.build_info(role);
        // Only the admin port shows them.
        #[cfg(all(target_os = "linux", feature = "admin"))]
        new.process();
        new.panics();
        let inner = Inner {
            lanes: Lanes::register(&new),
            kinds: Kinds::register(&new),
            connection: ConnectionMetrics::register(&new),
            gateway: GatewayMetrics::register(&new),
            stuck: new.gauge("garenne_tasks_stuck", "Tasks that ignore cancellation and block their worker."),
            unreadable: new.counters(
                "garenne_unreadable_total",
                "Deliveries whose properties, routing key or exchange name the client library cannot parse.",
                &["queue"],
            ),
            spans: new.counters("garenne_spans_total", "Spans, by result of their export.", &["result"]),
            headers_ignored: new.counters(
                "garenne_headers_ignored_total",
                "Headers reserved for workers that were ignored because a publisher set them.",
                &["header"],
            ),
            records_refused: new.counters(
                "garenne_records_refused_total",
                "Records and fields of readings that were left out, by the door that they came to and the code of the reason.",
                &["door", "reason"],
            ),
            before_encode: RwLock::default(),
            registry,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The metrics of a configured lane. The handles are resolved: keep them for the hot path.
    pub fn lane(&self, lane: &str) -> LaneMetrics {
        self.inner.lanes.get(lane)
    }

    /// Registers kinds: their metrics are exported from now on, at zero.
    pub fn register_kinds<'a>(&self, kinds: impl IntoIterator<Item = &'a str>) {
        self.inner.kinds.know(kinds);
    }

    /// A kind's metrics, resolved for the hot path; those of [`UNKNOWN_KIND`] if the kind is not registered.
    pub fn kind(&self, kind: &str) -> KindMetrics {
        self.inner.kinds.get(kind)
    }

    /// The broker connections and what is published on them.
    pub fn connection(&self) -> &ConnectionMetrics {
        &self.inner.connection
    }

    /// The gateway's requests and connections; not exported before the first one is counted.
    pub fn gateway(&self) -> &GatewayMetrics {
        &self.inner.gateway
    }

    /// `garenne_tasks_stuck`: tasks that ignore cancellation.
    pub fn tasks_stuck(&self) -> &IntGauge {
        &self.inner.stuck
    }

    /// `garenne_unreadable_total` of a configured queue.
    pub fn unreadable(&self, queue: &str) -> IntCounter {
        self.inner.unreadable.with_label_values(&[queue])
    }

    /// `garenne_spans_total` of `exported`, `failed` or `dropped`; not exported with traces off.
    #[cfg(feature = "otlp")]
    pub(super) fn spans(&self, result: &str) -> IntCounter {
        self.inner.spans.with_label_values(&[result])
    }

    /// `garenne_headers_ignored_total` of one of a fixed set of headers; not exported by programs that do not
    /// consume.
    pub fn headers_ignored(&self, header: &'static str) -> IntCounter {
        self.inner.headers_ignored.with_label_values(&[header])
    }

    /// `garenne_records_refused_total` of a door, such as `http` or `mqtt`, and the code of a reason; not exported before
    /// the first one is counted.
    pub fn records_refused(&self, door: &'static str, reason: &'static str) -> IntCounter {
        self.inner.records_refused.with_label_values(&[door, reason])
    }

    /// Counts of tasks so far, by kind, without the kinds that had none.
    pub fn kind_counts(&self) -> BTreeMap<String, KindBeat> {
        self.inner.kinds.counts()
    }

    /// The state of broker connections, by role; roles that never connected are left out.
    pub fn connection_counts(&self) -> BTreeMap<String, ConnectionBeat> {
        self.inner.connection.counts()
    }

    /// The gateway's connections and requests, by state and by status.
    pub fn gateway_counts(&self) -> GatewayBeat {
        self.inner.gateway.counts()
    }

    /// The registry, for metrics that only one program has.
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// Runs `refresh` before each [`Metrics::encode`], for gauges that are cheaper to compute on demand than to keep
    /// up to date. It must not block, and must not hold a [`Metrics`], which would be a reference cycle; clones of
    /// single handles are fine.
    pub fn before_encode(&self, refresh: impl Fn() + Send + Sync + 'static) {
        self.inner.before_encode.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(refresh));
    }

    /// All metrics in Prometheus' text format.
    pub fn encode(&self) -> String {
        encoded(&self.gather())
    }

    /// The metrics of several workers of one process as one text, each series with the label `worker`.
    pub fn encode_all<'m>(workers: impl IntoIterator<Item = (&'m str, &'m Self)>) -> String {
        let mut all = BTreeMap::<String, MetricFamily>::new();
        for (name, metrics) in workers {
            for mut family in metrics.gather() {
                for series in family.mut_metric() {
                    let mut label = LabelPair::default();
                    label.set_name("worker".to_owned());
                    label.set_value(name.to_owned());
                    let mut labels = series.take_label();
                    labels.push(label);
                    series.set_label(labels);
                }
                match all.entry(family.name().to_owned()) {
                    Entry::Vacant(entry) => drop(entry.insert(family)),
                    Entry::Occupied(mut entry) => entry.get_mut().mut_metric().extend(family.take_metric()),
                }
            }
        }
        encoded(&all.into_values().collect::<Vec<_>>())
    }

    fn gather(&self) -> Vec<MetricFamily> {
        for refresh in self.inner.before_encode.read().unwrap_or_else(PoisonError::into_inner).iter() {
            refresh();
        }
        self.inner.registry.gather()
    }
}

fn encoded(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    TextEncoder::new().encode_utf8(families, &mut text).expect("text goes into a string");
    text
}

#[cfg(test)]
mod tests;
