//! The gateway's own metrics.

use garenne_protocol::heartbeat::GatewayBeat;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::register::{NewMetrics, series};

/// Metrics of the sensor gateway. Clones share the counters.
#[derive(Debug, Clone)]
pub struct GatewayMetrics {
    requests: IntCounterVec,
    connections: IntGaugeVec,
}

impl GatewayMetrics {
    pub(super) fn register(new: &NewMetrics<'_>) -> Self {
        Self {
            requests: new.counters(
                "garenne_gateway_requests_total",
                "Requests answered, by protocol and status.",
                &["protocol", "status"],
            ),
            connections: new.gauges(
                "garenne_gateway_connections",
                "Connections, by server and state.",
                &["server", "state"],
            ),
        }
    }

    /// `garenne_gateway_requests_total`. The gateway chooses both labels, never a client: `protocol`, such as `http`
    /// or `tcp`, and `status`, an HTTP status or a line protocol's `ok` or error code.
    pub fn requests(&self, protocol: &str, status: &str) -> IntCounter {
        self.requests.with_label_values(&[protocol, status])
    }

    /// `garenne_gateway_connections` of a server model in one state.
    pub fn connections(&self, server: &str, state: &str) -> IntGauge {
        self.connections.with_label_values(&[server, state])
    }

    /// Connections by state and requests by status, summed over servers and protocols.
    pub(super) fn counts(&self) -> GatewayBeat {
        let mut counts = GatewayBeat::default();
        // Label values are sorted by label name: server, state; protocol, status.
        for (labels, connections) in series(&self.connections) {
            *counts.connections.entry(labels[1].clone()).or_default() += connections as i64;
        }
        for (labels, requests) in series(&self.requests) {
            *counts.requests.entry(labels[1].clone()).or_default() += requests as u64;
        }
        counts
    }
}
