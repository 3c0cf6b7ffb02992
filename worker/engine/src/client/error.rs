//! Errors of publishing tasks.

use garenne_amqp::{BrokerError, PublishError};
use garenne_protocol::{
    rights::MissingRight,
    task::{HeaderError, IdError, Kind, KindError},
};
use thiserror::Error;

use crate::draft::DraftError;

/// Why a task is not known to be stored.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// Nothing was sent: the broker's URL is invalid or the connection could not be opened.
    #[error(transparent)]
    Connect(BrokerError),
    /// Nothing was sent: the client was [closed](super::Client::close).
    #[error("the client is closed")]
    Closed,
    /// Nothing was sent: the payload cannot be written as JSON.
    #[error("the payload cannot be written as JSON: {0}")]
    Payload(String),
    /// Nothing was sent: the kind cannot be a routing key.
    #[error(transparent)]
    Kind(#[from] KindError),
    /// Nothing was sent: the task id is invalid.
    #[error(transparent)]
    Id(#[from] IdError),
    /// Nothing was sent: a [header](super::Enqueue::header) is refused.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Nothing was sent: an option is out of its bounds.
    #[error("{option} is out of range: expected {expected}")]
    OutOfRange {
        /// `delay`, `timeout`, `key` or `group`.
        option: &'static str,
        /// The bounds.
        expected: String,
    },
    /// Nothing was stored: the task is over a limit of the broker. Publishing it again fails again.
    #[error("the task's {what} has {bytes} bytes, {limit} are allowed")]
    TooLarge {
        /// `routing key`, `header frame` or `body`.
        what: &'static str,
        /// Its size, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// Nothing was stored: the exchange that takes the fleet's tasks does not exist. Publishing the task again fails again
    /// until the prefix is corrected or the topology exists.
    #[error(
        "exchange {exchange:?} does not exist in virtual host {vhost:?}: check the prefix that the client connects with and \
         the virtual host in its URL; if both are right, start a worker or run `garenne topology apply`, which declare it"
    )]
    NoExchange {
        /// `<prefix>.tasks`.
        exchange: String,
        /// The virtual host of the client's URL.
        vhost: String,
    },
    /// Nothing was stored: the broker's user may not publish the task. Publishing it again fails again until the user has
    /// the right.
    #[error(
        "user {user:?} lacks the right write on {resource} in virtual host {vhost:?}: give it the right with `rabbitmqctl \
         set_permissions` (set_topic_permissions for a topic); a program that publishes needs no other"
    )]
    Denied {
        /// The user of the client's URL.
        user: String,
        /// What the right is missing on: `exchange "…"` or `topic "…" in exchange "…"`.
        resource: String,
        /// The virtual host of the client's URL.
        vhost: String,
    },
    /// Nothing was stored: a queue is full, or the broker blocks publishers. It may be published again. A task whose kind no
    /// lane takes is no error: the broker stores it in the queue `garenne.unroutable` of the fleet, and confirms it.
    #[error("the broker refused the task: {0}")]
    Refused(String),
    /// The task may be stored: no confirm arrived in time, or the connection ended before. Publish it again with the
    /// same [id](super::Enqueue::id).
    #[error("no confirm for the task, which may be stored: {0}")]
    TimedOut(String),
}

impl From<DraftError> for EnqueueError {
    fn from(error: DraftError) -> Self {
        match error {
            DraftError::Payload(error) => Self::Payload(error),
            DraftError::Kind(error) => Self::Kind(error),
            DraftError::Id(error) => Self::Id(error),
            DraftError::Header(error) => Self::Header(error),
            DraftError::OutOfRange { option, expected } => Self::OutOfRange { option, expected },
        }
    }
}

impl EnqueueError {
    /// The error of a connection that could not be opened.
    pub(super) fn of_connection(error: PublishError) -> Self {
        match error {
            PublishError::Connect(error) => Self::Connect(error),
            error => Self::Refused(error.to_string()),
        }
    }

    /// The error of a task of this kind that was published to `exchange`.
    ///
    /// The broker closes the channel because of one message, and all of those in flight get its error.
    pub(super) fn of(error: PublishError, exchange: &str, kind: &Kind, vhost: &str) -> Self {
        if error.missing_exchange() == Some(exchange) {
            return Self::NoExchange { exchange: exchange.to_owned(), vhost: vhost.to_owned() };
        }
        match error {
            PublishError::TooLarge { what, bytes, limit } => Self::TooLarge { what, bytes, limit },
            PublishError::Denied(refusal) => match MissingRight::of(&refusal) {
                Some(MissingRight { user, vhost, resource, .. })
                    if resource == format!("exchange {exchange:?}")
                        || resource == format!("topic {:?} in exchange {exchange:?}", kind.as_str()) =>
                {
                    Self::Denied { user, resource, vhost }
                }
                // That of another task.
                _ => Self::TimedOut(refusal),
            },
            PublishError::InDoubt(_) => Self::TimedOut(error.to_string()),
            error => Self::of_connection(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(error: PublishError) -> EnqueueError {
        EnqueueError::of(error, "shop.tasks", &Kind::parse("mail.send").unwrap(), "/")
    }

    #[test]
    fn a_mistyped_prefix_is_told_from_a_lost_connection() {
        let missing = |name: &str| {
            let text = format!("channel closed: NOT_FOUND - no exchange '{name}.tasks' in vhost '/' (404)");
            of(PublishError::InDoubt(text))
        };
        let EnqueueError::NoExchange { exchange, vhost } = missing("shop") else { panic!() };
        assert_eq!((exchange.as_str(), vhost.as_str()), ("shop.tasks", "/"));
        let text = missing("shop").to_string();
        assert!(
            text.starts_with("exchange \"shop.tasks\" does not exist in virtual host \"/\": check"),
            "{text}"
        );
        assert!(matches!(missing("other"), EnqueueError::TimedOut(_)), "another message's");
        let lost = of(PublishError::InDoubt("the connection ended".into()));
        assert!(matches!(lost, EnqueueError::TimedOut(_)), "{lost}");
        assert!(lost.to_string().contains("may be stored: unconfirmed: the connection ended"), "{lost}");
    }

    #[test]
    fn a_missing_right_of_this_task_is_told_from_that_of_another() {
        let denied = |resource: &str| {
            let text = format!(
                "ACCESS_REFUSED - write access to {resource} in vhost '/' refused for user 'app' (403)"
            );
            of(PublishError::Denied(text))
        };
        for resource in ["exchange 'shop.tasks'", "topic 'mail.send' in exchange 'shop.tasks'"] {
            let error = denied(resource);
            assert!(matches!(&error, EnqueueError::Denied { user, .. } if user == "app"), "{error}");
            let expected = format!("user \"app\" lacks the right write on {}", resource.replace('\'', "\""));
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
        for resource in ["topic 'mail.list' in exchange 'shop.tasks'", "exchange 'amq.default'"] {
            let error = denied(resource);
            assert!(matches!(error, EnqueueError::TimedOut(_)), "{error}");
        }
    }

    #[test]
    fn a_refusal_is_no_doubt() {
        let key = || ("shop.tasks".to_owned(), "mail.send".to_owned());
        let (exchange, routing_key) = key();
        let unroutable = PublishError::Unroutable { exchange, routing_key };
        let (exchange, routing_key) = key();
        let full = PublishError::Refused { exchange, routing_key };
        let busy = PublishError::Busy { what: "connection", waited: Duration::from_secs(5) };
        for error in [unroutable, full, busy, PublishError::Blocked] {
            let (text, error) = (error.to_string(), of(error));
            assert!(matches!(&error, EnqueueError::Refused(reason) if *reason == text), "{error}");
        }
        let large = of(PublishError::TooLarge { what: "body", bytes: 2, limit: 1 });
        assert!(matches!(large, EnqueueError::TooLarge { what: "body", bytes: 2, limit: 1 }), "{large}");
    }
}
