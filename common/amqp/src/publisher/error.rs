//! Errors of publishing.

use std::time::Duration;

use garenne_common::{
    connection::PublishResult,
    exit::{Exit, HasExit},
};
use thiserror::Error;

use crate::{
    error::BrokerError,
    reply::{self, ACCESS_REFUSED, PRECONDITION_FAILED},
};

/// Why a message is not known to be stored.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Nothing was sent: no connection or in-flight permit became free in time.
    #[error("publisher is busy: no {what} within {waited:?}")]
    Busy {
        /// `connection` or `in-flight permit`.
        what: &'static str,
        /// How long the caller waited.
        waited: Duration,
    },
    /// Nothing was sent: the connection could not be opened.
    #[error(transparent)]
    Connect(BrokerError),
    /// Nothing was sent: the broker blocks publishers because of a memory or disk alarm.
    #[error("the broker blocks publishers: a resource alarm is on (memory or disk)")]
    Blocked,
    /// Nothing was stored: the message is over a limit. Sending it again fails again.
    #[error("the message's {what} has {bytes} bytes, {limit} are allowed")]
    TooLarge {
        /// `exchange`, `routing key`, `header frame` or `body`.
        what: &'static str,
        /// Its size, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The broker returned it, because no queue is bound for it. It was not stored.
    #[error("no queue is bound to exchange {exchange:?} for routing key {routing_key:?}")]
    Unroutable {
        /// The exchange.
        exchange: String,
        /// The routing key.
        routing_key: String,
    },
    /// The broker refused to store it (`basic.nack`): a queue is full or unavailable. It may be sent again.
    #[error("the broker refused the message ({})", refused_by(exchange, routing_key))]
    Refused {
        /// The exchange; empty for the default exchange, whose routing keys are queues.
        exchange: String,
        /// The routing key.
        routing_key: String,
    },
    /// The broker closed the channel of announcements, most likely because of the previous announcement.
    #[error("{0}")]
    AnnounceRefused(String),
    /// It was sent, but the connection ended or no confirm arrived in time: the broker may have stored it. Sending
    /// it again with the same id is safe.
    #[error("unconfirmed: {0}")]
    InDoubt(String),
    /// The broker closed the channel because the user lacks a permission. In doubt as well: every message in
    /// flight on the channel gets this error, and only one of them was denied.
    #[error("the broker denied the message: {0}")]
    Denied(String),
}

impl PublishError {
    /// The result that the metrics count it under.
    pub fn counted_as(&self) -> PublishResult {
        match self {
            Self::Unroutable { .. } => PublishResult::Returned,
            Self::Refused { .. } => PublishResult::Refused,
            Self::InDoubt(_) | Self::Denied(_) => PublishResult::Unconfirmed,
            Self::Busy { .. }
            | Self::Connect(_)
            | Self::Blocked
            | Self::TooLarge { .. }
            | Self::AnnounceRefused(_) => PublishResult::NotSent,
        }
    }

    /// The error of a message whose channel ended with `error` after the message was sent.
    pub(super) fn lost(error: &lapin::Error) -> Self {
        match reply::of(error) {
            Some((ACCESS_REFUSED, _)) => Self::Denied(error.to_string()),
            _ => Self::InDoubt(error.to_string()),
        }
    }

    /// As [`Self::lost`], for a message with a body of `bytes`. The broker closes the channel because of a body over
    /// its limit and names the limit. Smaller messages on the same channel are only in doubt.
    pub(super) fn lost_with(error: &lapin::Error, bytes: usize) -> Self {
        if let Some((PRECONDITION_FAILED, text)) = reply::of(error)
            && let Some(limit) = body_limit(text)
            && bytes > limit
        {
            return Self::TooLarge { what: "body", bytes, limit };
        }
        Self::lost(error)
    }

    /// The exchange that does not exist, if the broker closed the channel because of it. All messages in flight have the
    /// error, so the exchange may be that of another one.
    pub fn missing_exchange(&self) -> Option<&str> {
        let Self::InDoubt(text) = self else { return None };
        text.split_once("NOT_FOUND - no exchange '")?.1.split_once('\'').map(|(name, _)| name)
    }

    /// Whether the broker may have stored the message despite the error.
    pub fn in_doubt(&self) -> bool {
        matches!(self, Self::InDoubt(_) | Self::Denied(_) | Self::Refused { .. })
    }
}

impl HasExit for PublishError {
    fn exit(&self) -> Exit {
        match self {
            Self::Connect(error) => error.exit(),
            Self::Busy { .. } | Self::Blocked => Exit::BrokerUnavailable,
            Self::Denied(_) => Exit::Denied,
            _ => Exit::Failed,
        }
    }
}

/// Where the message was refused. The name of a queue is known only at the default exchange.
fn refused_by(exchange: &str, routing_key: &str) -> String {
    match exchange {
        "" => format!("queue {routing_key:?} full or unavailable"),
        _ => format!("a queue of exchange {exchange:?} full or unavailable, routing key {routing_key:?}"),
    }
}

/// Parses the limit in `message size 17 is larger than configured max size 16`.
fn body_limit(text: &str) -> Option<usize> {
    let (_, rest) = text.split_once("larger than configured max size ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_queue_or_the_exchange_that_refused() {
        let refused = |exchange: &str, key: &str| {
            PublishError::Refused { exchange: exchange.into(), routing_key: key.into() }.to_string()
        };
        assert_eq!(
            refused("", "garenne.dead"),
            "the broker refused the message (queue \"garenne.dead\" full or unavailable)"
        );
        assert_eq!(
            refused("garenne.dead", "mqtt.message"),
            "the broker refused the message (a queue of exchange \"garenne.dead\" full or unavailable, \
             routing key \"mqtt.message\")"
        );
    }

    #[test]
    fn the_body_limit_is_parsed_from_the_reply_text() {
        let reply = "PRECONDITION_FAILED - message size 17 is larger than configured max size 16";
        assert_eq!(body_limit(reply), Some(16));
        assert_eq!(body_limit(&format!("{reply} (406)")), Some(16));
        assert_eq!(body_limit("PRECONDITION_FAILED - unknown delivery tag 16"), None);
    }
}
