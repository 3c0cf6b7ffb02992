//! Metrics of the bridge.

use std::collections::BTreeMap;

use garenne_common::telemetry::Metrics;
use prometheus::{
    IntCounter, IntCounterVec, IntGauge, register_int_counter_vec_with_registry,
    register_int_counter_with_registry, register_int_gauge_with_registry,
};
use strum::{EnumIter, IntoEnumIterator, IntoStaticStr};

/// Outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, EnumIter)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Outcome {
    /// Readings.
    Mapped,
    /// Readings, and a dead letter with the values that are refused.
    Partial,
    /// A map skips it, or allows payloads without a number.
    Skipped,
    /// A dead letter.
    Unmapped,
    /// A dead letter without the payload.
    TooLarge,
    /// A retained message, which was not asked for.
    Retained,
}

/// Metrics of the bridge. Clones share them.
#[derive(Clone)]
pub(crate) struct Instruments {
    metrics: Metrics,
    messages: IntCounterVec,
    redeliveries: IntCounterVec,
    /// Readings that were mapped.
    pub(crate) readings: IntCounter,
    /// How often a map left values out because nothing was measured.
    pub(crate) unmeasured: IntCounter,
    /// Messages that were received and are not stored yet.
    pub(crate) in_flight: IntGauge,
    /// 1 while the session on the MQTT broker is open and subscribed.
    pub(crate) connected: IntGauge,
    /// Connections to the MQTT broker that were opened.
    pub(crate) connections: IntCounter,
}

impl Instruments {
    pub(crate) fn register(metrics: &Metrics) -> prometheus::Result<Self> {
        let registry = metrics.registry();
        let counters = |name: &str, help: &str, labels: &[&str]| {
            register_int_counter_vec_with_registry!(name, help, labels, registry)
        };
        let counter = |name: &str, help: &str| register_int_counter_with_registry!(name, help, registry);
        let gauge = |name: &str, help: &str| register_int_gauge_with_registry!(name, help, registry);
        Ok(Self {
            metrics: metrics.clone(),
            messages: counters(
                "garenne_mqtt_messages_total",
                "MQTT messages received, by what became of them.",
                &["outcome"],
            )?,
            redeliveries: counters(
                "garenne_mqtt_redeliveries_total",
                "MQTT messages that the broker marked as sent before. With repeat=\"possible\" their readings may be stored twice.",
                &["repeat"],
            )?,
            readings: counter("garenne_mqtt_readings_total", "Readings in MQTT messages.")?,
            unmeasured: counter(
                "garenne_mqtt_unmeasured_total",
                "Times that a map left out the values of an MQTT message because nothing was measured.",
            )?,
            in_flight: gauge("garenne_mqtt_in_flight", "MQTT messages received and not stored yet.")?,
            connected: gauge(
                "garenne_mqtt_connected",
                "1 while the bridge is subscribed to the MQTT broker.",
            )?,
            connections: counter("garenne_mqtt_connections_total", "Connections opened to the MQTT broker.")?,
        })
    }

    /// Counts a message.
    pub(crate) fn received(&self, outcome: Outcome) {
        self.messages.with_label_values(&[<&str>::from(outcome)]).inc();
    }

    /// Counts messages and values that are left out, by the code of the reason.
    pub(crate) fn left_out(&self, codes: &[&'static str]) {
        codes.iter().for_each(|code| self.metrics.records_refused("mqtt", code).inc());
    }

    /// Messages so far, by what became of them, without outcomes that none had.
    pub(crate) fn message_counts(&self) -> BTreeMap<String, u64> {
        let counted = Outcome::iter().map(|outcome| {
            let name = <&str>::from(outcome);
            (name.to_owned(), self.messages.with_label_values(&[name]).get())
        });
        counted.filter(|(_, count)| *count > 0).collect()
    }

    /// Counts a message that the broker marked as sent before.
    pub(crate) fn redelivered(&self, harmless: bool) {
        let repeat = if harmless { "harmless" } else { "possible" };
        self.redeliveries.with_label_values(&[repeat]).inc();
    }
}
