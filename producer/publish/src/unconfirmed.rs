//! Refuses new tasks while the oldest unconfirmed message is overdue, instead of queueing them behind it.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use garenne_amqp::PublishError;
use garenne_common::lock::lock;
use scopeguard::guard;
use tokio::time::Instant;

/// The unconfirmed messages.
pub(super) struct UnconfirmedMessages {
    limit: Duration,
    /// When they were published. Their numbers ascend with time.
    messages: Mutex<BTreeMap<u64, Instant>>,
}

impl UnconfirmedMessages {
    /// A message is overdue after `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, messages: Mutex::default() }
    }

    /// Adds a message that is published now. It is unconfirmed until the returned guard is dropped.
    pub(super) fn track(&self) -> impl Drop {
        let mut messages = lock(&self.messages);
        let number = messages.last_key_value().map_or(0, |(last, _)| last + 1);
        messages.insert(number, Instant::now());
        drop(messages);
        guard(number, |number| {
            lock(&self.messages).remove(&number);
        })
    }

    /// [`PublishError::Busy`] while the oldest unconfirmed message is overdue.
    pub(super) fn check_overdue(&self) -> Result<(), PublishError> {
        let oldest = lock(&self.messages).first_key_value().map(|(_, published_at)| *published_at);
        match oldest {
            Some(oldest) if oldest.elapsed() > self.limit => {
                Err(PublishError::Busy { what: "confirm of an earlier message", waited: self.limit })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn new_tasks_are_refused_while_a_confirm_is_overdue() {
        let unconfirmed = UnconfirmedMessages::new(Duration::from_secs(2));
        let (first, second) = (unconfirmed.track(), unconfirmed.track());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let _third = unconfirmed.track();
        assert!(unconfirmed.check_overdue().is_ok());
        tokio::time::sleep(Duration::from_millis(1001)).await;
        let refused = unconfirmed.check_overdue().unwrap_err();
        assert_eq!(refused.to_string(), "publisher is busy: no confirm of an earlier message within 2s");
        drop(first);
        assert!(unconfirmed.check_overdue().is_err(), "the second is as old");
        drop(second);
        assert!(unconfirmed.check_overdue().is_ok());
    }
}
