//! The gateway's own metrics.

use garenne_protocol::heartbeat::GatewayBeat;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::register;

/// Requests and connections of the sensor gateway; a clone counts into the same.
#[derive(Debug, Clone)]
pub struct GatewayMetrics {
    requests: IntCounterVec,
    connections: IntGaugeVec,
}

impl GatewayMetrics {
    pub(super) fn register(registry: &Registry) -> Self {
        Self {
            requests: register::counters(
                registry,
                "garenne_gateway_requests_total",
                "Requests answered, by protocol and status.",
                &["protocol", "status"],
            ),
            connections: register::gauges(
                registry,
                "garenne_gateway_connections",
                "Connections by server and what they do.",
                &["server", "state"],
            ),
        }
    }

    /// `garenne_gateway_requests_total`. Both labels are words of the gateway's own, never of a
    /// client's: `protocol` such as `http` or `tcp`, `status` an HTTP code or a line's `ok`/error code.
    pub fn requests(&self, protocol: &str, status: &str) -> IntCounter {
        self.requests.with_label_values(&[protocol, status])
    }

    /// `garenne_gateway_connections` of one kind of server in one state.
    pub fn connections(&self, server: &str, state: &str) -> IntGauge {
        self.connections.with_label_values(&[server, state])
    }

    /// Connections by state and requests by status, over all servers and protocols.
    pub(super) fn counts(&self) -> GatewayBeat {
        let mut counts = GatewayBeat::default();
        // Labels come in the order of their names: server, state; protocol, status.
        for (labels, connections) in register::series(&self.connections) {
            *counts.connections.entry(labels[1].clone()).or_default() += connections as i64;
        }
        for (labels, requests) in register::series(&self.requests) {
            *counts.requests.entry(labels[1].clone()).or_default() += requests as u64;
        }
        counts
    }
}
