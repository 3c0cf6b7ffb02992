//! The state of the gateway for its admin port and heartbeats.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use garenne_amqp::Publisher;
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
    /// Knows whether messages reach a queue. Not set where the gateway publishes to none.
    publisher: OnceLock<Publisher>,
}

impl Status {
    /// From now on the gateway is not ready while its messages reach no queue.
    pub(crate) fn watch_routes(&self, publisher: Publisher) {
        let _ = self.publisher.set(publisher);
    }

    /// A gateway that accepts connections.
    pub(crate) fn new(connected: IntGauge, spool: Option<Spool>, server: ServerKind) -> Arc<Self> {
        Arc::new(Self {
            accepting: AtomicBool::new(true),
            connected,
            spool,
            server,
            publisher: OnceLock::new(),
        })
    }

    /// From now on the gateway is not ready and its heartbeats say that it stops.
    pub(crate) fn stop(&self) {
        self.accepting.store(false, Ordering::Relaxed);
    }

    /// Why messages reach no queue. With a spool they are kept on disk meanwhile.
    fn route_problem(&self) -> Option<String> {
        self.publisher.get().and_then(Publisher::route_problem)
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
        match self.route_problem().filter(|_| self.spool.is_none()) {
            Some(problem) => Err(vec![problem]),
            None => Ok(()),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let Some(spool) = &self.spool else { return Vec::new() };
        spool_warning(spool).into_iter().chain(self.route_problem()).collect()
    }

    fn pool(&self) -> Value {
        json!({ "server": self.server.as_str() })
    }
}
