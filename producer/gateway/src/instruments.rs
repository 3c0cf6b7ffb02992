//! Metrics of the gateway.

use garenne_common::telemetry::Metrics;
use prometheus::{
    IntCounterVec, IntGauge, register_int_counter_vec_with_registry, register_int_gauge_with_registry,
};

use crate::{audit::Audit, memory::MemoryBudget, refusal::Refusal};

/// Metrics of the gateway. Clones share them.
#[derive(Clone)]
pub struct Instruments {
    metrics: Metrics,
    records: IntCounterVec,
    refused: IntCounterVec,
    /// Logs and counts refusals.
    pub(crate) audit: Audit,
}

impl Instruments {
    /// Registers the gateway's metrics, which include the use of `budget`.
    pub fn register(metrics: &Metrics, budget: &MemoryBudget) -> prometheus::Result<Self> {
        let registry = metrics.registry();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            register_int_counter_vec_with_registry!(name, help, labels, registry)
        };
        let records =
            counter("garenne_gateway_records_total", "Records confirmed or spooled.", &["protocol"])?;
        let refused = counter(
            "garenne_gateway_refused_connections_total",
            "Connections refused.",
            &["server", "reason"],
        )?;
        let (name, help) = ("garenne_gateway_reserved_bytes", "Bytes of gateway.memory_budget in use.");
        let reserved = register_int_gauge_with_registry!(name, help, registry)?;
        let budget = budget.clone();
        metrics.before_encode(move || reserved.set(i64::try_from(budget.used()).unwrap_or(i64::MAX)));
        Ok(Self { metrics: metrics.clone(), records, refused, audit: Audit::register(registry)? })
    }

    /// Counts an answer that confirms `records`.
    pub(super) fn answered(&self, protocol: &str, status: &str, records: usize) {
        self.metrics.gateway().requests(protocol, status).inc();
        if records > 0 {
            self.records.with_label_values(&[protocol]).inc_by(records as u64);
        }
    }

    /// Counts records and fields that are left out.
    pub(super) fn left_out<'r>(&self, door: &'static str, refused: impl IntoIterator<Item = &'r Refusal>) {
        for refusal in refused {
            self.metrics.records_refused(door, refusal.code).inc();
        }
    }

    /// Counts lines, fields or data points that are left out for one reason.
    pub(super) fn rejected(&self, door: &'static str, reason: &'static str, count: u64) {
        self.metrics.records_refused(door, reason).inc_by(count);
    }

    /// Counts the records that a refusal of a whole request names.
    pub(super) fn refused_records(&self, door: &'static str, refusal: &Refusal) {
        let is_about_records =
            refusal.record.is_some() || refusal.line.is_some() || refusal.code == "unmapped";
        if is_about_records && refusal.refused.is_empty() {
            self.left_out(door, [refusal]);
        }
        self.left_out(door, refusal.refused.iter());
    }

    /// Counts lines that are stored without an answer, and their records.
    pub(super) fn lines_accepted(&self, protocol: &str, lines: usize, records: usize) {
        self.metrics.gateway().requests(protocol, "ok").inc_by(lines as u64);
        self.records.with_label_values(&[protocol]).inc_by(records as u64);
    }

    /// Counts a refused connection.
    pub(super) fn refused(&self, server: &str, reason: &str) {
        self.refused.with_label_values(&[server, reason]).inc();
    }

    /// The gauge `garenne_gateway_connections`.
    pub(super) fn connections(&self, server: &str, state: &str) -> IntGauge {
        self.metrics.gateway().connections(server, state)
    }
}
