//! What differs between versions of RabbitMQ, as measured on live brokers and read in `rabbit_fifo`.

use garenne_protocol::topology::BrokerVersion;

/// How a message came back to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnKind {
    /// `basic.nack` with `requeue`.
    Nack,
    /// `basic.reject` with `requeue`.
    Reject,
    /// Its channel or connection ended.
    Down,
    /// The consumer timeout of 4.3, which cancels the consumer. Earlier versions close the channel.
    Timeout,
}

/// The rules of one version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules(BrokerVersion);

impl Rules {
    pub(crate) fn new(version: BrokerVersion) -> Self {
        Self(version)
    }

    fn is_at_least(self, major: u16, minor: u16) -> bool {
        self.0 >= BrokerVersion { major, minor }
    }

    /// The limit that a queue with this `x-delivery-limit` has. [`None`] is no limit.
    pub(crate) fn delivery_limit(self, argument: Option<i64>) -> Option<i64> {
        match argument {
            // -1 is below every count, so the first return exceeds it.
            limit if !self.is_at_least(4, 0) => limit,
            None => Some(20),
            Some(limit) => (limit >= 0).then_some(limit),
        }
    }

    /// Whether such a return raises the delivery count.
    pub(crate) fn counts(self, kind: ReturnKind) -> bool {
        !self.is_at_least(4, 3) || matches!(kind, ReturnKind::Reject | ReturnKind::Down)
    }

    /// Whether such a return puts the message behind all others, instead of ahead of all that were never delivered.
    pub(crate) fn lands_at_tail(self, kind: ReturnKind, limit: Option<i64>) -> bool {
        let by_client = matches!(kind, ReturnKind::Nack | ReturnKind::Reject);
        !self.is_at_least(4, 3) && limit.is_none() && by_client
    }

    /// Whether the consumer timeout cancels the consumer, instead of closing its channel.
    pub(crate) fn timeout_cancels(self) -> bool {
        self.is_at_least(4, 3)
    }

    /// Whether `basic.reject` is sent to the queue together with everything stashed before it.
    pub(crate) fn reject_sends_stash(self) -> bool {
        self.is_at_least(4, 3)
    }

    /// Whether the `x-death` of a message that a client publishes counts in the search for cycles.
    pub(crate) fn reads_published_deaths(self) -> bool {
        !self.is_at_least(4, 0)
    }

    /// Whether deliveries carry `x-acquired-count`.
    pub(crate) fn tells_acquired_count(self) -> bool {
        self.is_at_least(4, 3)
    }

    /// Whether dead letters carry `x-last-death-*`.
    pub(crate) fn tells_last_death(self) -> bool {
        self.is_at_least(4, 0)
    }

    /// The largest body in bytes.
    pub(crate) fn max_body(self) -> usize {
        if self.is_at_least(4, 0) { 16 << 20 } else { 128 << 20 }
    }
}
