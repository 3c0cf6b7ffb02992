//! What the gateway counts.

use garenne_common::telemetry::Metrics;
use prometheus::{IntCounterVec, IntGauge, Opts};

use crate::memory::MemoryBudget;

/// The gateway's metrics; a clone counts into the same.
#[derive(Clone)]
pub struct Instruments {
    metrics: Metrics,
    records: IntCounterVec,
    refused: IntCounterVec,
}

impl Instruments {
    /// Adds what only a gateway has to say to the process's metrics. Once per process.
    ///
    /// # Errors
    /// It was done before.
    pub fn register(metrics: &Metrics) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            metrics.registry().register(Box::new(counter.clone()))?;
            prometheus::Result::Ok(counter)
        };
        Ok(Self {
            records: counter("garenne_gateway_records_total", "Records receipted.", &["protocol"])?,
            refused: counter(
                "garenne_gateway_refused_connections_total",
                "Connections that nobody could serve.",
                &["server", "reason"],
            )?,
            metrics: metrics.clone(),
        })
    }

    /// A request or line got its answer; `records` were receipted.
    pub(super) fn answered(&self, protocol: &str, status: &str, records: usize) {
        self.metrics.gateway().requests(protocol, status).inc();
        if records > 0 {
            self.records.with_label_values(&[protocol]).inc_by(records as u64);
        }
    }

    /// A connection found no place.
    pub(super) fn refused(&self, server: &str, reason: &str) {
        self.refused.with_label_values(&[server, reason]).inc();
    }

    /// Shows how much of a budget is in use.
    ///
    /// # Errors
    /// It was done before.
    pub fn watch_memory(&self, budget: &MemoryBudget) -> prometheus::Result<()> {
        let help = "Bytes of gateway.memory_budget in use.";
        let reserved = IntGauge::new("garenne_gateway_reserved_bytes", help)?;
        self.metrics.registry().register(Box::new(reserved.clone()))?;
        let budget = budget.clone();
        self.metrics.before_encode(move || reserved.set(i64::try_from(budget.used()).unwrap_or(i64::MAX)));
        Ok(())
    }

    /// `garenne_gateway_connections`.
    pub(super) fn connections(&self, server: &str, state: &str) -> IntGauge {
        self.metrics.gateway().connections(server, state)
    }
}
