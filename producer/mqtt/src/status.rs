//! What only the bridge has in its readiness and heartbeats.

use std::sync::Arc;

use garenne_amqp::DeadLetters;
use garenne_protocol::heartbeat::{BridgeBeat, Heartbeat, Program};
use garenne_publish::State;

use crate::instruments::Instruments;

/// The state of the bridge for its admin port and heartbeats.
pub(crate) struct BridgeState {
    /// The state of the connection to the MQTT broker, and counters of messages.
    pub(crate) mqtt: Instruments,
    pub(crate) letters: Arc<DeadLetters>,
    /// The MQTT broker.
    pub(crate) broker: String,
    pub(crate) subscriptions: Vec<String>,
}

impl State for BridgeState {
    const PROGRAM: Program = Program::Bridge;
    const METRICS: &'static str = "mqtt";
    const TRACES: &'static str = "garenne-mqtt";
    const NAME: &'static str = "bridge";
    const STARTING: &'static str = "starting: connecting to the AMQP broker";
    const BROKER: &'static str = "AMQP broker";

    fn problems(&self) -> Vec<String> {
        let not_subscribed = self.mqtt.connected.get() == 0;
        let not_subscribed = not_subscribed.then(|| "not subscribed to the MQTT broker".to_owned());
        not_subscribed.into_iter().chain(self.letters.problem()).collect()
    }

    fn add_to(&self, heartbeat: &mut Heartbeat) {
        heartbeat.bridge = Some(BridgeBeat {
            broker: self.broker.clone(),
            connected: self.mqtt.connected.get() != 0,
            subscriptions: self.subscriptions.clone(),
            in_flight: self.mqtt.in_flight.get().unsigned_abs(),
            messages: self.mqtt.message_counts(),
        });
    }
}
