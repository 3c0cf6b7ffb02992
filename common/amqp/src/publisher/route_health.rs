//! Whether messages reach a queue: an exchange that is gone, has no binding, or may not be published to, fails all of them.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use garenne_common::lock::lock;
use tokio::time::Instant;

use super::PublishError;

/// How long a failure is a problem. A program that is not ready gets no requests that could show that it is over.
const PROBLEM_FOR: Duration = Duration::from_secs(30);

/// The last message that could not be routed.
#[derive(Default)]
pub(super) struct RouteHealth {
    /// Whether there is one, for the path on which all is well.
    failing: AtomicBool,
    last: Mutex<Option<Failure>>,
}

struct Failure {
    exchange: String,
    problem: String,
    /// Whether a right is missing. Otherwise a declaration may help.
    is_denied: bool,
    at: Instant,
}

impl RouteHealth {
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Records the outcome of a message. `exchange` is that of the message, if it was sent while one was failing.
    pub(super) fn note(&self, outcome: &Result<(), PublishError>, exchange: Option<&str>) {
        let failure = match outcome {
            Ok(()) => {
                if exchange.is_some() && lock(&self.last).as_ref().map(|it| it.exchange.as_str()) == exchange
                {
                    self.forget();
                }
                return;
            }
            // The queue of a single message is no matter of an exchange.
            Err(PublishError::Unroutable { exchange, .. }) if !exchange.is_empty() => (
                exchange.clone(),
                format!("exchange {exchange:?} has no binding that leads to a queue"),
                false,
            ),
            Err(error @ PublishError::InDoubt(_)) => match error.missing_exchange() {
                Some(exchange) => (exchange.to_owned(), format!("exchange {exchange:?} is missing"), false),
                None => return,
            },
            Err(PublishError::Denied(text)) => match denied_exchange(text) {
                Some(exchange) => (exchange.to_owned(), text.clone(), true),
                None => return,
            },
            Err(_) => return,
        };
        let (exchange, problem, is_denied) = failure;
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::error!(exchange, problem, "messages reach no queue");
        }
        *lock(&self.last) = Some(Failure { exchange, problem, is_denied, at: Instant::now() });
    }

    pub(super) fn forget(&self) {
        *lock(&self.last) = None;
        if self.failing.swap(false, Ordering::Relaxed) {
            tracing::info!("messages reach queues again");
        }
    }

    pub(super) fn problem(&self) -> Option<String> {
        self.recent(|_| true)
    }

    /// The broker's refusal, if the user lacks a right.
    pub(super) fn denied(&self) -> Option<String> {
        self.recent(|it| it.is_denied)
    }

    fn recent(&self, wanted: impl Fn(&Failure) -> bool) -> Option<String> {
        let last = lock(&self.last);
        last.as_ref().filter(|it| it.at.elapsed() < PROBLEM_FOR && wanted(it)).map(|it| it.problem.clone())
    }
}

/// The exchange in the broker's `write access to exchange 'name' in vhost '/' refused …`, or the one of a topic. The name of the
/// default exchange is empty.
fn denied_exchange(text: &str) -> Option<&str> {
    let name = text.split_once("exchange '")?.1.split_once('\'').map(|(name, _)| name)?;
    Some(if name == "amq.default" { "" } else { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unroutable(exchange: &str) -> Result<(), PublishError> {
        Err(PublishError::Unroutable { exchange: exchange.into(), routing_key: "k".into() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_a_problem_until_a_message_to_the_same_exchange_succeeds_or_for_half_a_minute() {
        let health = RouteHealth::default();
        assert!(!health.is_failing() && health.problem().is_none());
        health.note(&unroutable("g.tasks"), None);
        let none = "exchange \"g.tasks\" has no binding that leads to a queue";
        assert_eq!(health.problem().as_deref(), Some(none));
        health.note(&Ok(()), Some("g.dead"));
        assert!(health.problem().is_some(), "another exchange");
        health.note(&Ok(()), Some("g.tasks"));
        assert!(!health.is_failing() && health.problem().is_none());
        let gone = "channel closed: NOT_FOUND - no exchange 'g.tasks' in vhost '/' (404)";
        health.note(&Err(PublishError::InDoubt(gone.into())), None);
        assert_eq!(health.problem().as_deref(), Some("exchange \"g.tasks\" is missing"));
        tokio::time::advance(PROBLEM_FOR).await;
        assert_eq!(health.problem(), None);
        health.note(&unroutable(""), None);
        assert_eq!(health.problem(), None, "a queue is no exchange");
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_right_is_a_problem_and_told_from_a_missing_exchange() {
        let health = RouteHealth::default();
        health.note(&unroutable("g.tasks"), None);
        assert_eq!(health.denied(), None);
        let refusal =
            "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'w' (403)";
        health.note(&Err(PublishError::Denied(refusal.into())), None);
        assert_eq!((health.denied(), health.problem()), (Some(refusal.to_owned()), Some(refusal.to_owned())));
        health.note(&Ok(()), Some(""));
        assert_eq!(health.denied(), None, "a message to the default exchange was stored");
    }
}
