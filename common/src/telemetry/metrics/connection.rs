//! Metrics of broker connections and publishes.

use std::{collections::BTreeMap, time::Duration};

use garenne_protocol::heartbeat::ConnectionBeat;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use strum::{EnumCount, IntoStaticStr, VariantArray};

use super::register::{CONFIRMS, NewMetrics, series};

/// The purpose of a connection: a metric label, and part of the connection's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Role {
    /// Publishes with confirms.
    Publish,
    /// Consumes and settles.
    Consume,
    /// Consumes foreign messages, which the broker may be unable to deliver.
    ConsumeForeign,
    /// Operator commands and topology declarations.
    Operate,
}

impl Role {
    /// The role as a metric label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The result of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumCount, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum PublishResult {
    /// The broker confirmed it.
    Confirmed,
    /// The broker returned it: no queue is bound for it.
    Returned,
    /// The broker refused it: a queue is full or unavailable.
    Refused,
    /// Sent, but no confirm arrived; the broker may have stored it.
    Unconfirmed,
    /// Not sent: no connection, no in-flight permit, or too large.
    NotSent,
}

impl PublishResult {
    /// Every result.
    pub const ALL: [Self; Self::COUNT] = *Self::VARIANTS.as_array().expect("as many as there are");

    /// The result as a metric label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

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

    /// Counts a publish in `garenne_published_total` and, if it was confirmed, observes `took`.
    pub fn published(&self, result: PublishResult, took: Duration) {
        self.published[result as usize].inc();
        if result == PublishResult::Confirmed {
            self.confirm.observe(took.as_secs_f64());
        }
    }
}
