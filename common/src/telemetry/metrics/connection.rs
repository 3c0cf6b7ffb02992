//! Metrics of broker connections and publishes.

use std::{collections::BTreeMap, time::Duration};

use garenne_protocol::heartbeat::ConnectionBeat;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::register::{CONFIRMS, NewMetrics, series};
use crate::connection::{ConnectionObserver, PublishResult, Role};

/// Metrics of connections and publishers. Clones share the counters.
#[derive(Debug, Clone)]
pub struct ConnectionMetrics {
    up: IntGaugeVec,
    reconnects: IntCounterVec,
    /// `garenne_connection_blocked`: 1 while the broker blocks publishers.
    pub blocked: IntGauge,
    published: [IntCounter; PublishResult::ALL.len()],
    /// `garenne_publish_confirm_seconds`
    pub confirm: Histogram,
}

impl ConnectionMetrics {
    pub(super) fn register(new: &NewMetrics<'_>) -> Self {
        let published =
            new.counters("garenne_published_total", "Messages published, by result.", &["result"]);
        Self {
            up: new.gauges(
                "garenne_connection_up",
                "1 while the connection for this role is open.",
                &["role"],
            ),
            reconnects: new.counters(
                "garenne_reconnects_total",
                "Connections opened again after a loss.",
                &["role"],
            ),
            blocked: new.gauge("garenne_connection_blocked", "1 while the broker blocks publishers."),
            published: PublishResult::ALL.map(|result| published.with_label_values(&[result.as_str()])),
            confirm: new.histogram(
                "garenne_publish_confirm_seconds",
                "Time from sending a message to the broker's confirm.",
                CONFIRMS,
            ),
        }
    }

    /// `garenne_connection_up`; exported for a role once its value is set.
    pub fn up(&self, role: Role) -> IntGauge {
        self.up.with_label_values(&[role.as_str()])
    }

    /// `garenne_reconnects_total`
    pub fn reconnects(&self, role: Role) -> IntCounter {
        self.reconnects.with_label_values(&[role.as_str()])
    }

    /// The connections of each role that has or had one.
    pub(super) fn counts(&self) -> BTreeMap<String, ConnectionBeat> {
        let mut counts: BTreeMap<String, ConnectionBeat> = BTreeMap::new();
        for (mut labels, up) in series(&self.up) {
            counts.entry(labels.remove(0)).or_default().up = up > 0.0;
        }
        for (mut labels, epoch) in series(&self.reconnects) {
            counts.entry(labels.remove(0)).or_default().epoch = epoch as u64;
        }
        counts
    }
}

impl ConnectionObserver for ConnectionMetrics {
    /// `garenne_connection_up`; `garenne_reconnects_total` is exported at zero from the first connection on.
    fn up_changed(&self, role: Role, up: bool) {
        self.reconnects(role);
        self.up(role).set(up.into());
    }

    fn reconnected(&self, role: Role) {
        self.reconnects(role).inc();
    }

    fn blocked_changed(&self, blocked: bool) {
        self.blocked.set(blocked.into());
    }

    /// `garenne_published_total` and, for a confirmed one, `garenne_publish_confirm_seconds`.
    fn published(&self, result: PublishResult, took: Duration) {
        self.published[result as usize].inc();
        if result == PublishResult::Confirmed {
            self.confirm.observe(took.as_secs_f64());
        }
    }
}
