//! Connections to the broker: their purposes, the results of publishes, and what observes them.

use std::time::Duration;

use strum::{EnumCount, IntoStaticStr, VariantArray};

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
    pub const ALL: [Self; Self::COUNT] = *Self::VARIANTS.as_array().expect("COUNT is the number of VARIANTS");

    /// The result as a metric label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What is told of a connection and what is published on it, such as the metrics of a process. Calls must not block.
pub trait ConnectionObserver: Send + Sync {
    /// The connection for this role was opened or lost.
    fn up_changed(&self, role: Role, up: bool);

    /// The connection for this role was replaced after a loss.
    fn reconnected(&self, role: Role);

    /// The broker blocks publishers, or no longer.
    fn blocked_changed(&self, blocked: bool);

    /// A publish ended with this result, after this time.
    fn published(&self, result: PublishResult, took: Duration);
}
