//! The state of the gateway for its admin port and heartbeats.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use garenne_common::telemetry::{HeartbeatSource, Metrics, admin::Process};
use garenne_protocol::heartbeat::{Heartbeat, Stance};
use garenne_spool::Spool;
use prometheus::IntGauge;
use serde_json::{Value, json};

use crate::{
    server::ServerKind,
    spool::{spool_beat, spool_warning},
};

/// The state of the gateway for its admin port and heartbeats.
pub(crate) struct Status {
    accepting: AtomicBool,
    /// 1 while the publishing connection is open.
    connected: IntGauge,
    /// With it, requests are accepted without a connection.
    spool: Option<Spool>,
    server: ServerKind,
}

impl Status {
    /// A gateway that accepts connections.
    pub(crate) fn new(connected: IntGauge, spool: Option<Spool>, server: ServerKind) -> Arc<Self> {
        Arc::new(Self { accepting: AtomicBool::new(true), connected, spool, server })
    }

    /// From now on the gateway is not ready and its heartbeats say that it stops.
    pub(crate) fn stop(&self) {
        self.accepting.store(false, Ordering::Relaxed);
    }

    /// Returns a function that makes the next heartbeat.
    pub(crate) fn heartbeats(
        self: &Arc<Self>,
        source: HeartbeatSource,
        metrics: Metrics,
    ) -> impl Fn() -> Heartbeat + Send + Sync + 'static {
        let status = Arc::clone(self);
        move || {
            let accepting = status.accepting.load(Ordering::Relaxed);
            Heartbeat {
                gateway: Some(metrics.gateway_counts()),
                spool: status.spool.as_ref().map(spool_beat),
                ..source.heartbeat(if accepting { Stance::Open } else { Stance::Stopping })
            }
        }
    }
}

impl Process for Status {
    fn ready(&self) -> Result<(), Vec<String>> {
        if !self.accepting.load(Ordering::Relaxed) {
            return Err(vec!["the gateway is stopping".to_owned()]);
        }
        if self.connected.get() == 0 && self.spool.is_none() {
            return Err(vec!["no connection to the broker".to_owned()]);
        }
        Ok(())
    }

    fn warnings(&self) -> Vec<String> {
        self.spool.as_ref().and_then(spool_warning).into_iter().collect()
    }

    fn pool(&self) -> Value {
        json!({ "server": self.server.as_str() })
    }
}
