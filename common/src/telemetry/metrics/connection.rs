//! The broker connections, and what is published on them.

use std::{collections::BTreeMap, time::Duration};

use garenne_protocol::heartbeat::ConnectionBeat;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::register::{self, CONFIRMS};

/// What a connection is for; the label of `garenne_connection_up` and part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Publishes with confirms.
    Publish,
    /// Consumes and settles.
    Consume,
    /// An operator's look or a declaration.
    Operate,
}

impl Role {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Consume => "consume",
            Self::Operate => "operate",
        }
    }
}

/// How a publish ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PublishResult {
    /// The broker has it.
    Confirmed,
    /// No queue takes it.
    Returned,
    /// The broker refused it: a queue is full or unavailable.
    Refused,
    /// Sent, and no answer came; it may be there.
    Unconfirmed,
    /// Not sent: no connection, too much in flight, or over a limit.
    NotSent,
}

impl PublishResult {
    /// Every result.
    pub const ALL: [Self; 5] =
        [Self::Confirmed, Self::Returned, Self::Refused, Self::Unconfirmed, Self::NotSent];

    /// The result as a metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Returned => "returned",
            Self::Refused => "refused",
            Self::Unconfirmed => "unconfirmed",
            Self::NotSent => "not-sent",
        }
    }
}

/// Connection and publisher metrics; a clone counts into the same.
#[derive(Debug, Clone)]
pub struct ConnectionMetrics {
    up: IntGaugeVec,
    reconnects: IntCounterVec,
    /// `garenne_connection_blocked`: 1 while the broker lets nobody publish.
    pub blocked: IntGauge,
    published: [IntCounter; PublishResult::ALL.len()],
    /// `garenne_publish_confirm_seconds`
    pub confirm: Histogram,
}

impl ConnectionMetrics {
    pub(super) fn register(registry: &Registry) -> Self {
        let published = register::counters(
            registry,
            "garenne_published_total",
            "Messages published, by how that ended.",
            &["result"],
        );
        Self {
            up: register::gauges(
                registry,
                "garenne_connection_up",
                "1 while the connection for this role is open.",
                &["role"],
            ),
            reconnects: register::counters(
                registry,
                "garenne_reconnects_total",
                "Connections rebuilt after a loss.",
                &["role"],
            ),
            blocked: register::gauge(
                registry,
                "garenne_connection_blocked",
                "1 while the broker lets nobody publish.",
            ),
            published: PublishResult::ALL.map(|result| published.with_label_values(&[result.as_str()])),
            confirm: register::histogram(
                registry,
                "garenne_publish_confirm_seconds",
                "From sending a message to the broker's confirm.",
                CONFIRMS,
            ),
        }
    }

    /// `garenne_connection_up`; set it, for the role appears with its first value.
    pub fn up(&self, role: Role) -> IntGauge {
        self.up.with_label_values(&[role.as_str()])
    }

    /// `garenne_reconnects_total`
    pub fn reconnects(&self, role: Role) -> IntCounter {
        self.reconnects.with_label_values(&[role.as_str()])
    }

    /// Every role that has a connection or had one.
    pub(super) fn counts(&self) -> BTreeMap<String, ConnectionBeat> {
        let mut counts: BTreeMap<String, ConnectionBeat> = BTreeMap::new();
        for (mut labels, up) in register::series(&self.up) {
            counts.entry(labels.remove(0)).or_default().up = up > 0.0;
        }
        for (mut labels, epoch) in register::series(&self.reconnects) {
            counts.entry(labels.remove(0)).or_default().epoch = epoch as u64;
        }
        counts
    }

    /// Counts a publish into `garenne_published_total` and, where the broker confirmed it, the time
    /// that took.
    pub fn published(&self, result: PublishResult, took: Duration) {
        self.published[result as usize].inc();
        if result == PublishResult::Confirmed {
            self.confirm.observe(took.as_secs_f64());
        }
    }
}
