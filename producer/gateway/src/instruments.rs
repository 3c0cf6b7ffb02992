//! Metrics of the gateway.

use garenne_common::telemetry::Metrics;
use prometheus::{IntCounterVec, IntGauge, Opts};

use crate::memory::MemoryBudget;

/// Metrics of the gateway. Clones share them.
#[derive(Clone)]
pub struct Instruments {
    metrics: Metrics,
    records: IntCounterVec,
    refused: IntCounterVec,
}

impl Instruments {
    /// Registers the gateway's metrics.
    ///
    /// # Errors
    /// They are registered already.
    pub fn register(metrics: &Metrics) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            metrics.registry().register(Box::new(counter.clone()))?;
            prometheus::Result::Ok(counter)
        };
        Ok(Self {
            records: counter("garenne_gateway_records_total", "Records confirmed.", &["protocol"])?,
            refused: counter(
                "garenne_gateway_refused_connections_total",
                "Connections refused.",
                &["server", "reason"],
            )?,
            metrics: metrics.clone(),
        })
    }

    /// Counts an answer that confirms `records`.
    pub(super) fn answered(&self, protocol: &str, status: &str, records: usize) {
        self.metrics.gateway().requests(protocol, status).inc();
        if records > 0 {
            self.records.with_label_values(&[protocol]).inc_by(records as u64);
        }
    }

    /// Counts a refused connection.
    pub(super) fn refused(&self, server: &str, reason: &str) {
        self.refused.with_label_values(&[server, reason]).inc();
    }

    /// Exports the use of `budget`.
    ///
    /// # Errors
    /// It is exported already.
    pub fn watch_memory(&self, budget: &MemoryBudget) -> prometheus::Result<()> {
        let help = "Bytes of gateway.memory_budget in use.";
        let reserved = IntGauge::new("garenne_gateway_reserved_bytes", help)?;
        self.metrics.registry().register(Box::new(reserved.clone()))?;
        let budget = budget.clone();
        self.metrics.before_encode(move || reserved.set(i64::try_from(budget.used()).unwrap_or(i64::MAX)));
        Ok(())
    }

    /// The gauge `garenne_gateway_connections`.
    pub(super) fn connections(&self, server: &str, state: &str) -> IntGauge {
        self.metrics.gateway().connections(server, state)
    }
}
