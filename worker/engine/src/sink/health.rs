//! Whether sinks work, for metrics, readiness and heartbeats.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use garenne_common::{clock, telemetry::metrics::NewMetrics};
use garenne_protocol::{heartbeat::SinkBeat, task::epoch_ms};
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::sync::watch;

/// The metrics of all sinks of a worker.
pub(crate) struct SinkMetrics {
    up: IntGaugeVec,
    panics: IntCounterVec,
    set_aside: IntGaugeVec,
}

impl SinkMetrics {
    /// Registers the metrics. Must be called once per registry.
    pub(crate) fn register(registry: &Registry) -> Self {
        let up = "1 while the sink takes results and its background work succeeds.";
        let panics = "Panics while results were written.";
        let set_aside =
            "What a part of the sink's background work has set aside because it fails, such as series.";
        let new = NewMetrics(registry);
        Self {
            up: new.gauges("garenne_sink_up", up, &["sink"]),
            panics: new.counters("garenne_sink_panics_total", panics, &["sink"]),
            set_aside: new.gauges("garenne_sink_set_aside", set_aside, &["sink", "part"]),
        }
    }

    /// The health of a sink. It counts as up until something fails.
    pub(super) fn health(&self, sink: &'static str) -> Health {
        let up = self.up.with_label_values(&[sink]);
        up.set(1);
        Health {
            sink,
            up,
            panics: self.panics.with_label_values(&[sink]),
            set_aside: self.set_aside.clone(),
            is_late: Arc::default(),
            failures: watch::Sender::default(),
        }
    }
}

/// The part of a sink that writes results. Parts of its background work have names that the sink gives them.
const WRITE: &str = "";

/// The health of one sink. A clone refers to the same sink.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) sink: &'static str,
    up: IntGauge,
    panics: IntCounter,
    set_aside: IntGaugeVec,
    /// Whether a write takes unusually long. It does not count as a failure yet.
    is_late: Arc<AtomicBool>,
    /// The parts that fail.
    failures: watch::Sender<BTreeMap<&'static str, PartFailure>>,
}

#[derive(Clone)]
struct PartFailure {
    /// When the first attempt of those that failed in a row failed.
    since: SystemTime,
    /// Why the last attempt failed.
    problem: String,
}

impl PartFailure {
    fn describe(&self, sink: &str, part: &str) -> String {
        let what = if part == WRITE { "takes no results".to_owned() } else { format!("{part} fails") };
        let since = OffsetDateTime::from(self.since).replace_nanosecond(0).unwrap_or(self.since.into());
        let since = since.format(&Rfc3339).expect("the year has four digits");
        format!("sink {sink} {what}: {} (since {since})", self.problem)
    }
}

impl Health {
    pub(super) fn write_succeeded(&self) {
        self.succeeded(WRITE);
    }

    /// Records a failed write, or one that takes too long.
    pub(super) fn write_failed(&self, problem: &str) {
        self.failed(WRITE, problem);
    }

    pub(super) fn succeeded(&self, part: &'static str) {
        let mut is_up = false;
        let was_failing = self.failures.send_if_modified(|failures| {
            let removed = failures.remove(part).is_some();
            is_up = failures.is_empty();
            removed
        });
        if was_failing && is_up {
            self.up.set(1);
            tracing::info!(sink = self.sink, "sink available again");
        }
    }

    pub(super) fn failed(&self, part: &'static str, problem: &str) {
        self.failures.send_modify(|failures| {
            let failure = failures
                .entry(part)
                .or_insert_with(|| PartFailure { since: clock::now(), problem: String::new() });
            problem.clone_into(&mut failure.problem);
        });
        self.up.set(0);
    }

    /// Records how much a part has set aside.
    pub(super) fn set_aside(&self, part: &str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.set_aside.with_label_values(&[self.sink, part]).set(count);
    }

    pub(super) fn count_panic(&self) {
        self.panics.inc();
    }

    /// Records whether a write takes unusually long.
    pub(super) fn set_late(&self, is_late: bool) {
        self.is_late.store(is_late, Ordering::Relaxed);
    }

    /// Whether results are stored at the usual pace.
    pub(super) fn is_storing(&self) -> bool {
        !self.is_down() && !self.is_late.load(Ordering::Relaxed)
    }

    /// Whether the last write failed.
    pub(super) fn is_down(&self) -> bool {
        self.failures.borrow().contains_key(WRITE)
    }

    /// The failing parts; one text for each.
    pub(super) fn problems(&self) -> Vec<String> {
        let failures = self.failures.borrow();
        failures.iter().map(|(part, failure)| failure.describe(self.sink, part)).collect()
    }

    /// The state for a heartbeat.
    pub(super) fn beat(&self) -> SinkBeat {
        let failures = self.failures.borrow();
        let first = failures.iter().min_by_key(|(_, failure)| failure.since);
        SinkBeat {
            up: first.is_none(),
            away_since: first.map(|(_, failure)| epoch_ms(failure.since)),
            trouble: first.map(|(part, failure)| failure.describe(self.sink, part)),
        }
    }
}
