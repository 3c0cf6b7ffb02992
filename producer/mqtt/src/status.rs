//! The state of the bridge for its admin port and heartbeats.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use garenne_amqp::DeadLetters;
use garenne_common::telemetry::{HeartbeatSource, admin::Process};
use garenne_gateway::{spool_beat, spool_warning};
use garenne_protocol::heartbeat::{BridgeBeat, Heartbeat, Stance};
use garenne_spool::Spool;
use prometheus::IntGauge;

use crate::instruments::Instruments;

/// The state of the bridge for its admin port and heartbeats.
pub(crate) struct Status {
    stopping: AtomicBool,
    /// 1 while the connection for publishing is open.
    amqp: IntGauge,
    /// The state of the connection to the MQTT broker, and counters of messages.
    mqtt: Instruments,
    /// With it, messages are stored without the connection for publishing.
    spool: Option<Spool>,
    letters: Arc<DeadLetters>,
}

impl Status {
    pub(crate) fn new(
        amqp: IntGauge,
        mqtt: Instruments,
        spool: Option<Spool>,
        letters: Arc<DeadLetters>,
    ) -> Arc<Self> {
        Arc::new(Self { stopping: AtomicBool::new(false), amqp, mqtt, spool, letters })
    }

    /// From now on the bridge is not ready and its heartbeats say that it stops.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Returns a function that makes the next heartbeat of a bridge with these subscriptions.
    pub(crate) fn heartbeats(
        self: &Arc<Self>,
        source: HeartbeatSource,
        broker: String,
        subscriptions: Vec<String>,
    ) -> impl Fn() -> Heartbeat + Send + Sync + 'static {
        let status = Arc::clone(self);
        move || {
            let stopping = status.stopping.load(Ordering::Relaxed);
            let bridge = BridgeBeat {
                broker: broker.clone(),
                connected: status.mqtt.connected.get() != 0,
                subscriptions: subscriptions.clone(),
                in_flight: status.mqtt.in_flight.get().unsigned_abs(),
                messages: status.mqtt.message_counts(),
            };
            let mut beat = Heartbeat {
                bridge: Some(bridge),
                spool: status.spool.as_ref().map(spool_beat),
                ..source.heartbeat(if stopping { Stance::Stopping } else { Stance::Open })
            };
            beat.bound();
            beat
        }
    }
}

impl Process for Status {
    fn ready(&self) -> Result<(), Vec<String>> {
        let missing = [
            (self.stopping.load(Ordering::Relaxed), "the bridge is stopping"),
            (self.mqtt.connected.get() == 0, "not subscribed to the MQTT broker"),
            (self.amqp.get() == 0 && self.spool.is_none(), "no connection to the AMQP broker"),
        ];
        let mut reasons: Vec<String> = missing
            .into_iter()
            .filter(|(missing, _)| *missing)
            .map(|(_, reason)| reason.to_owned())
            .collect();
        reasons.extend(self.letters.problem());
        reasons.extend(self.letters.publisher().route_problem().filter(|_| self.spool.is_none()));
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    fn warnings(&self) -> Vec<String> {
        self.spool.as_ref().and_then(spool_warning).into_iter().collect()
    }
}
