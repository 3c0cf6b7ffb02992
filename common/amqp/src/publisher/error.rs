//! Why a message is not known to be safe.

use std::time::Duration;

use deadpool::managed::PoolError;
use garenne_common::{
    exit::{Exit, HasExit},
    telemetry::metrics::PublishResult,
};
use thiserror::Error;

use crate::{declare::reply_code, error::BrokerError};

/// Why a message is not known to be safe.
#[derive(Clone, Debug, Error)]
pub enum PublishError {
    /// Nothing was sent: every member was busy, or too much was in flight.
    #[error("publisher is busy: no {what} within {waited:?}")]
    Busy {
        /// `connection` or `place in flight`.
        what: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// Nothing was sent: no connection.
    #[error(transparent)]
    Connect(BrokerError),
    /// Nothing was sent: the broker takes nothing from publishers, for lack of memory or disk.
    #[error("the broker blocks publishers: a resource alarm is on (memory or disk)")]
    Blocked,
    /// Nothing was sent, or nothing was stored: the message is over a limit, now and whenever it is sent again.
    #[error("the message's {what} has {bytes} bytes, {limit} are allowed")]
    TooLarge {
        /// `exchange`, `routing key`, `header frame` or `body`.
        what: &'static str,
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        limit: usize,
    },
    /// The broker has no queue for it; it was not stored.
    #[error("no queue takes exchange {exchange:?}, routing key {routing_key:?}")]
    Unroutable {
        /// The exchange.
        exchange: String,
        /// The routing key.
        routing_key: String,
    },
    /// The broker refused to store it (queue full or unavailable); it may be sent again.
    #[error("the broker refused the message (queue {routing_key:?} full or unavailable)")]
    Refused {
        /// The routing key.
        routing_key: String,
    },
    /// The broker closed the channel of announcements, in all likelihood over the one before.
    #[error("{0}")]
    Unheard(String),
    /// In doubt: sent, and the connection ended or the confirm did not come in time. Sending it again
    /// with the same id is safe.
    #[error("unconfirmed: {0}")]
    InDoubt(String),
    /// The broker closed the channel because this user may not do what was asked. In doubt as well: every
    /// message in flight on the channel shares its end, and only one of them was denied.
    #[error("the broker denied it: {0}; may this user write there?")]
    Denied(String),
}

impl PublishError {
    /// What it counts as among the publishes.
    pub fn counted_as(&self) -> PublishResult {
        match self {
            Self::Unroutable { .. } => PublishResult::Returned,
            Self::Refused { .. } => PublishResult::Refused,
            Self::InDoubt(_) | Self::Denied(_) => PublishResult::Unconfirmed,
            Self::Busy { .. }
            | Self::Connect(_)
            | Self::Blocked
            | Self::TooLarge { .. }
            | Self::Unheard(_) => PublishResult::NotSent,
        }
    }
}

impl HasExit for PublishError {
    fn exit(&self) -> Exit {
        match self {
            Self::Connect(error) => error.exit(),
            // Nobody gave us a connection, or leave to publish, for as long as we were to wait.
            Self::Busy { .. } | Self::Blocked => Exit::BrokerUnavailable,
            Self::Denied(_) => Exit::Denied,
            _ => Exit::Failed,
        }
    }
}

impl PublishError {
    pub(super) fn of_pool(error: PoolError<BrokerError>, waited: Option<Duration>) -> Self {
        match error {
            PoolError::Backend(error) => Self::Connect(error),
            _ => Self::Busy { what: "connection", waited: waited.unwrap_or_default() },
        }
    }

    /// A message that was sent, and what ended its channel.
    pub(super) fn lost(error: &lapin::Error) -> Self {
        match reply_code(error) {
            Some(403) => Self::Denied(error.to_string()),
            _ => Self::InDoubt(error.to_string()),
        }
    }

    /// The same for a message whose body has so many bytes. The broker closes the channel over a body that is too
    /// large and names the limit; smaller ones on the same channel only share its end.
    pub(super) fn lost_with(error: &lapin::Error, bytes: usize) -> Self {
        match (reply_code(error), body_limit(&error.to_string())) {
            (Some(PRECONDITION_FAILED), Some(limit)) if bytes > limit => {
                Self::TooLarge { what: "body", bytes, limit }
            }
            _ => Self::lost(error),
        }
    }

    /// Whether the message may have been stored all the same.
    pub fn in_doubt(&self) -> bool {
        matches!(self, Self::InDoubt(_) | Self::Denied(_) | Self::Refused { .. })
    }
}

/// What the broker closes a channel with over a body that is larger than its `max_message_size`.
const PRECONDITION_FAILED: u16 = 406;

/// The limit in `message size 17 is larger than configured max size 16`.
fn body_limit(text: &str) -> Option<usize> {
    let (_, rest) = text.split_once("larger than configured max size ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_body_is_read_from_the_brokers_words() {
        let says = "PRECONDITION_FAILED - message size 17 is larger than configured max size 16";
        assert_eq!(body_limit(says), Some(16));
        assert_eq!(body_limit(&format!("{says} (406)")), Some(16));
        assert_eq!(body_limit("PRECONDITION_FAILED - unknown delivery tag 16"), None);
    }
}
