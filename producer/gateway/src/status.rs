//! The state of the gateway for its admin port and heartbeats.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use garenne_common::{
    config::host_name,
    telemetry::{Metrics, admin::Process},
};
use garenne_protocol::{
    heartbeat::{Heartbeat, Program, Stance},
    task::{TaskId, epoch_ms},
};
use prometheus::IntGauge;
use serde_json::{Value, json};

use crate::server::ServerKind;

/// The state of the gateway for its admin port and heartbeats.
pub(crate) struct Status {
    accepting: AtomicBool,
    /// 1 while the publishing connection is open.
    connected: IntGauge,
    /// Requests are accepted without a connection.
    has_spool: bool,
    server: ServerKind,
}

impl Status {
    /// A gateway that accepts connections.
    pub(crate) fn new(connected: IntGauge, has_spool: bool, server: ServerKind) -> Arc<Self> {
        Arc::new(Self { accepting: AtomicBool::new(true), connected, has_spool, server })
    }

    /// From now on the gateway is not ready and its heartbeats say that it stops.
    pub(crate) fn stop(&self) {
        self.accepting.store(false, Ordering::Relaxed);
    }

    /// Returns a function that makes the next heartbeat.
    pub(crate) fn heartbeats(
        self: &Arc<Self>,
        id: String,
        interval: Duration,
        metrics: Metrics,
    ) -> impl Fn() -> Heartbeat + Send + Sync + 'static {
        let incarnation = TaskId::random().as_str().to_owned();
        let started = SystemTime::now();
        let status = Arc::clone(self);
        move || Heartbeat {
            program: Program::Gateway,
            id: id.clone(),
            incarnation: incarnation.clone(),
            host: host_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: epoch_ms(started),
            at: epoch_ms(SystemTime::now()),
            every_ms: interval.as_millis().try_into().unwrap_or(u64::MAX),
            stance: if status.accepting.load(Ordering::Relaxed) { Stance::Open } else { Stance::Stopping },
            lanes: BTreeMap::new(),
            paused: Vec::new(),
            paused_kinds: Vec::new(),
            groups: Default::default(),
            running: 0,
            tasks: Vec::new(),
            kinds: BTreeMap::new(),
            connections: metrics.connection_counts(),
            blocked: metrics.connection().blocked.get() != 0,
            sinks: BTreeMap::new(),
            gateway: Some(metrics.gateway_counts()),
        }
    }
}

impl Process for Status {
    fn ready(&self) -> Result<(), Vec<String>> {
        if !self.accepting.load(Ordering::Relaxed) {
            return Err(vec!["the gateway is stopping".to_owned()]);
        }
        if self.connected.get() == 0 && !self.has_spool {
            return Err(vec!["no connection to the broker".to_owned()]);
        }
        Ok(())
    }

    fn pool(&self) -> Value {
        json!({ "server": self.server.as_str() })
    }
}
