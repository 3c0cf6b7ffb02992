//! What only the gateway has in its readiness and heartbeats.

use garenne_common::telemetry::Metrics;
use garenne_protocol::heartbeat::{Heartbeat, Program};
use garenne_publish::State;
use serde_json::{Value, json};

use crate::server::ServerKind;

/// The state of the gateway for its admin port and heartbeats.
pub(crate) struct GatewayState {
    pub(crate) server: ServerKind,
    pub(crate) metrics: Metrics,
}

impl State for GatewayState {
    const PROGRAM: Program = Program::Gateway;
    const METRICS: &'static str = "gateway";
    const TRACES: &'static str = "garenne-gateway";
    const NAME: &'static str = "gateway";
    const STARTING: &'static str = "starting: connecting to the broker";
    const BROKER: &'static str = "broker";

    fn add_to(&self, heartbeat: &mut Heartbeat) {
        heartbeat.gateway = Some(self.metrics.gateway_counts());
    }

    fn pool(&self) -> Value {
        json!({ "server": self.server.as_str() })
    }
}
