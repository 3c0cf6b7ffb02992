//! The parts of a topology: exchanges and queues.

use std::collections::BTreeMap;

use serde::Serialize;
use strum::IntoStaticStr;

use super::{ladder::Ladder, names::Names};

/// What the names of the exchanges and queues of Celery's delayed delivery begin with.
pub(super) const CELERY_DELAYED: &str = "celery_delayed_";

/// The argument of a delay queue.
pub(super) const TTL: &str = "x-message-ttl";

/// How an exchange routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum ExchangeKind {
    /// By matching the routing key with binding patterns.
    Topic,
    /// To every bound queue.
    Fanout,
    /// To one bound queue, selected by the hash of a header. Needs the plugin
    /// `rabbitmq_consistent_hash_exchange`, which is part of the RabbitMQ distribution.
    #[strum(serialize = "x-consistent-hash")]
    ConsistentHash,
}

impl ExchangeKind {
    /// The exchange type as declared.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The value of a declaration argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Arg {
    /// A long string.
    Text(String),
    /// An integer.
    Number(i64),
}

/// A durable exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The name.
    pub name: String,
    /// The type.
    pub kind: ExchangeKind,
    /// The declaration arguments.
    pub arguments: BTreeMap<&'static str, Arg>,
}

impl Exchange {
    /// Whether it is Celery's, which may have declared it with other arguments. Programs can start without it.
    pub fn is_celerys(&self) -> bool {
        self.name.starts_with(CELERY_DELAYED)
    }
}

/// A durable queue or stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The name.
    pub name: String,
    /// The declaration arguments, including `x-queue-type`.
    pub arguments: BTreeMap<&'static str, Arg>,
}

impl Queue {
    /// Whether it is a stream.
    pub fn is_stream(&self) -> bool {
        self.arguments.get("x-queue-type") == Some(&Arg::Text("stream".to_owned()))
    }

    /// Whether programs can do without it, so that they start on the topology of an earlier version: a delay queue of
    /// the quarantine other than the first, or one of Celery.
    pub fn is_optional(&self) -> bool {
        let infix = format!(".retry.{}.", Names::QUARANTINE);
        let delay = self.name.split_once(&infix).map(|(_, delay)| delay);
        self.is_celerys()
            || delay.is_some_and(|delay| delay != Ladder::of_quarantine().rungs()[0].to_string())
    }

    /// Whether it is Celery's, which may have declared it with other arguments.
    pub fn is_celerys(&self) -> bool {
        self.name.starts_with(CELERY_DELAYED)
    }

    /// Whether messages only wait here, until they expire.
    pub(super) fn is_delay(&self) -> bool {
        self.arguments.contains_key(TTL)
    }
}
