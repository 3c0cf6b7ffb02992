//! The state of the bridge for its admin port.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use garenne_common::telemetry::admin::Process;
use prometheus::IntGauge;

/// The state of the bridge for its admin port.
pub(crate) struct Status {
    stopping: AtomicBool,
    /// 1 while the connection for publishing is open.
    amqp: IntGauge,
    /// 1 while the bridge is subscribed.
    mqtt: IntGauge,
    /// Messages are stored without the connection for publishing.
    has_spool: bool,
}

impl Status {
    pub(crate) fn new(amqp: IntGauge, mqtt: IntGauge, has_spool: bool) -> Arc<Self> {
        Arc::new(Self { stopping: AtomicBool::new(false), amqp, mqtt, has_spool })
    }

    /// From now on the bridge is not ready.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

impl Process for Status {
    fn ready(&self) -> Result<(), Vec<String>> {
        let missing = [
            (self.stopping.load(Ordering::Relaxed), "the bridge is stopping"),
            (self.mqtt.get() == 0, "not subscribed to the MQTT broker"),
            (self.amqp.get() == 0 && !self.has_spool, "no connection to the AMQP broker"),
        ];
        let reasons: Vec<String> = missing
            .into_iter()
            .filter(|(missing, _)| *missing)
            .map(|(_, reason)| reason.to_owned())
            .collect();
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }
}
